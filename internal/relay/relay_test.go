package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo is a server that answers each line with itself and reports what it got.
func echo(t *testing.T) (address string, got <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	lines := make(chan string, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for scanner := bufio.NewScanner(conn); scanner.Scan(); {
					lines <- scanner.Text()
					io.WriteString(conn, scanner.Text()+"\n")
				}
			}()
		}
	}()
	return listener.Addr().String(), lines
}

func start(t *testing.T) (*Relay, <-chan string) {
	t.Helper()
	target, got := echo(t)
	r, err := New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, got
}

func dial(t *testing.T, r *Relay) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// answer reads one line, waiting no longer than patience.
func answer(conn net.Conn, patience time.Duration) (string, error) {
	conn.SetReadDeadline(time.Now().Add(patience))
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

const (
	long  = 10 * time.Second      // for what must come
	short = 50 * time.Millisecond // for what must not
)

func want(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	if got, err := answer(conn, long); err != nil || got != line+"\n" {
		t.Fatalf("read %q, %v; want %q", got, err, line)
	}
}

func wantSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	if got, err := answer(conn, short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %q, %v; want nothing", got, err)
	}
}

func wantEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	if got, err := answer(conn, long); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %q, %v; want the connection's end", got, err)
	}
}

func TestCutAndHeal(t *testing.T) {
	r, _ := start(t)
	before := dial(t, r)
	send(t, before, "one")
	want(t, before, "one")

	r.Set(Faults{Cut: true})
	wantEnd(t, before)
	wantEnd(t, dial(t, r))

	r.Set(Faults{})
	after := dial(t, r)
	send(t, after, "two")
	want(t, after, "two")
}

func TestHangKeepsWhatWasSent(t *testing.T) {
	r, got := start(t)
	conn := dial(t, r)
	send(t, conn, "one")
	want(t, conn, "one")
	<-got

	r.Set(Faults{Hang: true})
	send(t, conn, "two")
	wantSilence(t, conn)
	if len(got) != 0 {
		t.Fatalf("the target got %q through a hanging relay", <-got)
	}

	r.Set(Faults{})
	want(t, conn, "two")
}

func TestDelayHoldsEachByteAndNotTheFlow(t *testing.T) {
	r, _ := start(t)
	const delay = 100 * time.Millisecond
	r.Set(Faults{Delay: delay})
	conn := dial(t, r)
	began := time.Now()
	for range 20 {
		send(t, conn, "x")
	}
	for got := 0; got < 40; {
		line, err := answer(conn, long)
		if err != nil {
			t.Fatal(err)
		}
		got += len(line)
	}
	if took := time.Since(began); took < 2*delay || took > 10*delay {
		t.Errorf("20 lines there and back took %v, each way is delayed by %v", took, delay)
	}
}

func TestDroppedAnswersTearTheConnection(t *testing.T) {
	r, got := start(t)
	conn := dial(t, r)
	r.Set(Faults{DropAnswers: true})
	send(t, conn, "one")
	if line := <-got; line != "one" {
		t.Fatalf("the target got %q", line)
	}
	wantSilence(t, conn)

	r.Set(Faults{})
	wantEnd(t, conn)
	after := dial(t, r)
	send(t, after, "two")
	want(t, after, "two")
}

func TestCloseEndsConnections(t *testing.T) {
	r, _ := start(t)
	conn := dial(t, r)
	send(t, conn, "one")
	want(t, conn, "one")
	r.Set(Faults{Hang: true})
	send(t, conn, "two")
	r.Close()
	wantEnd(t, conn)
}
