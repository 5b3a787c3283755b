package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"lockfs/internal/proccell"
)

// message is what is echoed.
var message = bytes.Repeat([]byte("x"), 128)

// echoAddresses are where the echo worker listens.
type echoAddresses struct{ TCP, GRPC string }

// echo is the worker that sends back what it is sent, and the connections to it: as many as there are
// clients of the library.
type echo struct {
	server  *proccell.Talker
	plain   net.Conn
	clients []*grpc.ClientConn
	streams []grpc.BidiStreamingClient[wrapperspb.BytesValue, wrapperspb.BytesValue]
}

// open starts the worker and connects to it.
func (e *echo) open(ctx context.Context, dir string) (err error) {
	if e.server, err = startWorker("echo", dir); err != nil {
		return err
	}
	var at echoAddresses
	if err := hear(ctx, e.server, 0, &at); err != nil {
		return err
	}
	if e.plain, err = net.Dial("tcp", at.TCP); err != nil {
		return err
	}
	for range crowd {
		c, err := grpc.NewClient(at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		e.clients = append(e.clients, c)
		stream, err := c.NewStream(context.Background(), &echoService.Streams[0], echoStream) // ends with c
		if err != nil {
			return err
		}
		e.streams = append(e.streams, &grpc.GenericClientStream[wrapperspb.BytesValue, wrapperspb.BytesValue]{ClientStream: stream})
	}
	return nil
}

func (e *echo) close() error {
	var errs []error
	if e.plain != nil {
		errs = append(errs, e.plain.Close())
	}
	for _, c := range e.clients {
		errs = append(errs, c.Close())
	}
	if e.server != nil {
		errs = append(errs, e.server.Kill())
	}
	return errors.Join(errs...)
}

func (e *echo) tcp(ctx context.Context, d time.Duration) (figures, error) {
	buffer := make([]byte, len(message))
	return load(ctx, 1, d, func(int) error {
		if _, err := e.plain.Write(message); err != nil {
			return err
		}
		_, err := io.ReadFull(e.plain, buffer)
		return err
	})
}

func (e *echo) unary(n int) func(context.Context, time.Duration) (figures, error) {
	return func(ctx context.Context, d time.Duration) (figures, error) {
		return load(ctx, n, d, func(i int) error {
			var out wrapperspb.BytesValue
			return e.clients[i].Invoke(ctx, echoUnary, wrapperspb.Bytes(message), &out)
		})
	}
}

func (e *echo) stream(n int) func(context.Context, time.Duration) (figures, error) {
	return func(ctx context.Context, d time.Duration) (figures, error) {
		return load(ctx, n, d, func(i int) error {
			if err := e.streams[i].Send(wrapperspb.Bytes(message)); err != nil {
				return err
			}
			_, err := e.streams[i].Recv()
			return err
		})
	}
}

// ---- The worker ------------------------------------------------------------------------------

const (
	echoUnary  = "/bench.Echo/Unary"
	echoStream = "/bench.Echo/Stream"
)

// echoService is written by hand: two methods are not worth a generated package.
var echoService = grpc.ServiceDesc{
	ServiceName: "bench.Echo",
	Methods: []grpc.MethodDesc{{
		MethodName: "Unary",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			err := decode(in)
			return in, err
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName:    "Stream",
		Handler:       func(_ any, stream grpc.ServerStream) error { return echoAll(stream) },
		ServerStreams: true,
		ClientStreams: true,
	}},
}

func echoAll(stream grpc.ServerStream) error {
	for {
		in := new(wrapperspb.BytesValue)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		if err := stream.SendMsg(in); err != nil {
			return err
		}
	}
}

// serveEchoes is the worker. It ends by being killed.
func serveEchoes() error {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	called, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(&echoService, nil)
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(called) }()
	go func() { failed <- echoBytes(plain) }()
	if err := answer(echoAddresses{TCP: plain.Addr().String(), GRPC: called.Addr().String()}); err != nil {
		return err
	}
	return <-failed
}

// echoBytes serves one connection.
func echoBytes(listener net.Listener) error {
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer := make([]byte, len(message))
	for {
		if _, err := io.ReadFull(conn, buffer); err != nil {
			return err
		}
		if _, err := conn.Write(buffer); err != nil {
			return err
		}
	}
}
