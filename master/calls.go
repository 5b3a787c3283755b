package master

import (
	"fmt"

	"lockfs"
	"lockfs/lockpb"
	"lockfs/store/storepb"
)

// call takes one call from a stream. mu is held.
func (r *Replica) call(s *stream, c *lockpb.Call) {
	s.open.Add(1)
	if err := r.admit(s, c); err != nil {
		r.answer(s, failure(c.GetId(), err))
		return
	}
	if c.GetAttach() == nil && !r.mu.machine.newest(c.GetSession(), s.serial) {
		s.open.Add(-1) // its client has gone on to another stream, and hears nothing here
		return
	}
	switch op := c.GetOp().(type) {
	case *lockpb.Call_CreateSession:
		if err := checkNote(op.CreateSession.GetHost()); err != nil {
			r.answer(s, failure(c.GetId(), err))
			return
		}
		r.mu.machine.createSession(r.moment(), &call{stream: s, id: c.GetId()}, &storepb.CreateSession{
			Identity: s.identity, Host: op.CreateSession.GetHost(), Caches: op.CreateSession.GetCaches()})
	case *lockpb.Call_Attach:
		r.attach(s, c, op.Attach)
	case *lockpb.Call_Stat, *lockpb.Call_Read, *lockpb.Call_List, *lockpb.Call_LockState:
		r.read(s, c)
	default:
		r.mutate(s, c)
	}
}

// admit refuses a call that is for another cell or mastership, or of a session that is not its
// sender's. mu is held.
func (r *Replica) admit(s *stream, c *lockpb.Call) error {
	switch {
	case s.open.Load() > 2*maxOpenCalls:
		s.end(errOpenCalls)
		return errOpenCalls
	case s.open.Load() > maxOpenCalls:
		return errOpenCalls
	case c.GetClusterId() != r.cfg.ClusterID:
		return &lockfs.Error{Kind: lockfs.ErrCell,
			Detail: fmt.Sprintf("this is cluster %x, the call is for %x", r.cfg.ClusterID, c.GetClusterId())}
	case !r.mu.machine.inOffice:
		return r.notMaster()
	case c.GetEpoch() != r.mu.machine.epoch:
		return &lockfs.Error{Kind: lockfs.ErrEpoch,
			Detail: fmt.Sprintf("this is epoch %d, the call is of %d", r.mu.machine.epoch, c.GetEpoch())}
	case c.GetSession() != 0:
		return r.mu.machine.session(c.GetSession(), s.identity)
	}
	return nil
}

// attach binds a session to its newest stream and says which locks it holds. mu is held.
func (r *Replica) attach(s *stream, c *lockpb.Call, a *lockpb.Attach) {
	r.mu.renewals = append(r.mu.renewals, func(moment) {
		m := r.mu.machine
		err := m.session(c.GetSession(), s.identity)
		if err == nil {
			err = m.attach(c.GetSession(), a.GetHello(), s)
		}
		if err != nil {
			r.answer(s, failure(c.GetId(), err))
			return
		}
		attached := new(lockpb.Attached)
		for _, h := range m.state.HeldBy(c.GetSession()) {
			attached.Locks = append(attached.Locks, &lockpb.HeldLock{
				Path: string(h.Node.Path), Instance: h.Node.Instance,
				Owner: h.Owner, Mode: uint32(h.Mode), Generation: h.Generation})
		}
		r.answer(s, &lockpb.Answer{Id: c.GetId(), Result: &lockpb.Answer_Attached{Attached: attached}})
	})
	r.mu.progress.Broadcast()
}

// keepAlive renews leases, once it is sure that this replica still led after they were asked for.
// A session that is ending, or that another stream has attached since, gets no answer. mu is held.
func (r *Replica) keepAlive(s *stream, k *lockpb.KeepAlive) {
	m := r.mu.machine
	if k.GetClusterId() != r.cfg.ClusterID || k.GetEpoch() != m.epoch || !m.inOffice {
		return
	}
	for _, renewal := range k.GetRenewals() {
		m.ask(renewal.GetSession())
	}
	r.mu.renewals = append(r.mu.renewals, func(at moment) {
		answer := new(lockpb.KeepAliveAnswer)
		for _, renewal := range k.GetRenewals() {
			m.asked(renewal.GetSession())
			renewed := &lockpb.Renewed{Session: renewal.GetSession(), Number: renewal.GetNumber()}
			if err := m.session(renewal.GetSession(), s.identity); err != nil {
				renewed.Kind = uint32(lockfs.KindOf(err))
			} else if lease, ok := m.renew(at, renewal.GetSession(), s); ok {
				renewed.LeaseMs = lease.Milliseconds()
			} else {
				continue
			}
			answer.Renewed = append(answer.Renewed, renewed)
		}
		if len(answer.Renewed) > 0 {
			s.send(&lockpb.ServerFrame{Frame: &lockpb.ServerFrame_KeepAliveAnswer{KeepAliveAnswer: answer}})
		}
	})
	r.mu.progress.Broadcast()
}

// mutate hands a numbered change to the machine. mu is held.
func (r *Replica) mutate(s *stream, c *lockpb.Call) {
	mutation, err := r.mutation(c)
	if err != nil {
		r.answer(s, failure(c.GetId(), err))
		return
	}
	r.mu.machine.mutate(r.moment(), &call{stream: s, id: c.GetId(), mutation: mutation})
}

// deliver sends what the machine says to a call. mu is held.
func (r *Replica) deliver(reply reply) {
	c := reply.call
	if reply.result == nil {
		c.stream.send(&lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Taken{Taken: &lockpb.Taken{Id: c.id}}})
		return
	}
	r.answer(c.stream, r.resultToWire(c, reply.result))
}

func (r *Replica) resultToWire(c *call, result *storepb.Result) *lockpb.Answer {
	a := resultToAnswer(result)
	a.Id = c.id
	switch {
	case result.GetKind() != 0:
	case c.mutation == nil:
		a.Result = &lockpb.Answer_SessionCreated{SessionCreated: &lockpb.SessionCreated{
			Session: result.GetSession(), LeaseMs: r.mu.state.Lease().Milliseconds()}}
	case c.mutation.GetGiveUp() != nil:
		gave := &lockpb.GaveUp{GivenUp: result.GetGivenUp() == nil}
		if !gave.GivenUp {
			gave.Answer = resultToAnswer(result.GetGivenUp())
		}
		a.Result = &lockpb.Answer_GaveUp{GaveUp: gave}
	}
	return a
}

// resultToAnswer converts what every kind of mutation may bring.
func resultToAnswer(result *storepb.Result) *lockpb.Answer {
	a := &lockpb.Answer{Kind: result.GetKind(), Detail: result.GetDetail()}
	switch {
	case result.GetKind() != 0:
	case result.GetLockMode() != 0:
		a.Result = &lockpb.Answer_Granted{Granted: &lockpb.Granted{
			Instance: result.GetStat().GetInstance(), Mode: result.GetLockMode(), Generation: result.GetLockGeneration()}}
	case result.GetStat() != nil:
		st := statToWire(result.GetStat())
		st.Created = result.GetCreated()
		a.Result = &lockpb.Answer_Stat{Stat: st}
	}
	return a
}

func statToWire(s *storepb.Stat) *lockpb.NodeStat {
	return &lockpb.NodeStat{
		Path: s.GetPath(), Type: s.GetType(), OwnerSession: s.GetOwnerSession(), Instance: s.GetInstance(),
		ContentGeneration: s.GetContentGeneration(), LockGeneration: s.GetLockGeneration(),
		AclGeneration: s.GetAclGeneration(), Checksum: s.GetChecksum(), Size: s.GetSize(), Mtime: s.GetMtime(),
		Acl: &lockpb.ACLNames{Read: s.GetAcl().GetRead(), Write: s.GetAcl().GetWrite(), ChangeAcl: s.GetAcl().GetChangeAcl()},
	}
}
