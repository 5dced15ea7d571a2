//! The loop that moves a machine's frames over a transport until its collective is done.
//!
//! It does not know what a collective is for, nor who waits for its end: backends own the machine, the transport and
//! the way to be stopped.

use crate::machine::RankMachine;
use crate::{CollectiveError, Outgoing, Slots, Transport};

/// Sends whatever can leave without waiting; counts the frames.
///
/// *Errors*: those of the transport.
pub(crate) fn flush<A: Slots, T: Transport>(
    machine: &mut RankMachine<A>,
    transport: &mut T,
) -> Result<usize, CollectiveError> {
    flush_by(machine, transport, T::try_send)
}

fn flush_by<A: Slots, T: Transport>(
    machine: &mut RankMachine<A>,
    transport: &mut T,
    send: impl Fn(&mut T, &Outgoing<'_>) -> Result<bool, CollectiveError>,
) -> Result<usize, CollectiveError> {
    let mut sent = 0;
    while let Some(frame) = machine.poll_send() {
        if !send(transport, &frame)? {
            break;
        }
        machine.sent();
        sent += 1;
    }
    Ok(sent)
}

/// Sends and receives what can be without waiting, for a machine whose owner has more to do before it needs the result.
///
/// *Errors*: those of the transport and the machine.
pub fn pump<A: Slots, T: Transport>(
    machine: &mut RankMachine<A>,
    transport: &mut T,
) -> Result<(), CollectiveError> {
    // Also before anything is read, as in `drive`.
    let mut moved = flush_by(machine, transport, T::try_send_ahead)?;
    loop {
        moved += transport.receive(&mut |frame| machine.handle_frame(&frame))?;
        moved += flush_by(machine, transport, T::try_send_ahead)?;
        if std::mem::take(&mut moved) == 0 {
            return Ok(());
        }
    }
}

/// Sends and receives until the machine's collective is done. It never waits while it can send or receive, so bounded
/// queues cannot bring the ranks to a standstill: whoever is behind always drains what the others send.
///
/// *Blocks* for the peers. *Errors*: those of the transport and the machine, and whatever `may_go_on` says.
pub fn drive<A: Slots, T: Transport>(
    machine: &mut RankMachine<A>,
    transport: &mut T,
    may_go_on: impl Fn() -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    let done = exchange(machine, transport, may_go_on);
    transport.rest();
    done
}

fn exchange<A: Slots, T: Transport>(
    machine: &mut RankMachine<A>,
    transport: &mut T,
    may_go_on: impl Fn() -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    // Before anything is read: who finds its peer in another collective must have told it so itself.
    flush(machine, transport)?;
    while !machine.is_done() {
        // The order matters: `wait` notices what changes after `receive`, so whatever we look at must be looked at after
        // it. A queue that has room again, or an abort, between the look and the wait then ends the wait.
        let taken = transport.receive(&mut |frame| machine.handle_frame(&frame))?;
        let sent = flush(machine, transport)?;
        may_go_on()?;
        if taken == 0 && sent == 0 && !machine.is_done() {
            transport.wait()?;
        }
    }
    Ok(())
}
