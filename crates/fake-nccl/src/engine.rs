//! Moves the bytes of a group: all sends and receives at once, so that no order between them can deadlock.

use crate::last_error::Failure;
use crate::operation::{HEADER, Incoming, Operation, Outgoing};
use crate::segment::Segment;
use std::collections::VecDeque;

/// How a group ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// The communicator was stopped: nothing is known of the buffers.
    Stopped,
}

/// A piece that is on its way, with how much of header and bytes has moved.
struct Moving<P> {
    piece: P,
    moved: usize,
    /// What arrived of the header.
    heard: [u8; HEADER],
}

/// By peer, in order.
type Queues<P> = Vec<VecDeque<Moving<P>>>;

fn queues<P>(world: usize, pieces: impl Iterator<Item = (usize, P)>) -> Queues<P> {
    let mut queues: Queues<P> = (0..world).map(|_| VecDeque::new()).collect();
    for (peer, piece) in pieces {
        queues[peer].push_back(Moving { piece, moved: 0, heard: [0; HEADER] });
    }
    queues
}

/// Works a group off. *Blocks* until all peers have done their part, or `stopped` says so.
///
/// *Errors*: a peer does something else.
///
/// # Safety
/// The operands are what the caller of the library promised: alive, and untouched by others.
pub(crate) unsafe fn run(
    segment: &Segment,
    rank: usize,
    operations: &[Operation],
    stopped: impl Fn() -> bool,
) -> Result<End, Failure> {
    let world = segment.world();
    let mut all: Vec<_> = operations.iter().map(|operation| operation.pieces(rank, world)).collect();
    let outgoing = all.iter_mut().flat_map(|pieces| pieces.outgoing.drain(..)).map(|out| (out.peer, out));
    let mut outgoing = queues(world, outgoing);
    let incoming = all.iter_mut().flat_map(|pieces| pieces.incoming.drain(..)).map(|into| (into.peer, into));
    let mut incoming = queues(world, incoming);
    let (mut failure, mut ended) = (None, false);
    segment.wait(rank, || {
        // As long as something moves, it goes on; a peer is told once for all that moved.
        loop {
            let mut progress = false;
            for peer in 0..world {
                // SAFETY: the operands are as the caller of this function says.
                let sent = unsafe { send(segment, rank, peer, &mut outgoing[peer]) };
                // SAFETY: as above; parts of a reduction are vectors that live in `all`.
                let heard = match unsafe { receive(segment, rank, peer, &mut incoming[peer]) } {
                    Ok(heard) => heard,
                    Err(error) => {
                        failure = Some(error);
                        return true;
                    }
                };
                if sent || heard {
                    segment.ring(peer);
                    progress = true;
                }
            }
            ended = outgoing.iter().all(VecDeque::is_empty) && incoming.iter().all(VecDeque::is_empty);
            if ended || stopped() || !progress {
                return ended || stopped();
            }
        }
    });
    match failure {
        Some(failure) => return Err(failure),
        None if !ended => return Ok(End::Stopped),
        None => {}
    }
    for (operation, pieces) in operations.iter().zip(all) {
        // SAFETY: as above.
        unsafe { operation.complete(pieces, rank) };
    }
    Ok(End::Done)
}

/// Moves what can be moved to one peer; tells whether anything was.
///
/// # Safety
/// As `run`.
unsafe fn send(segment: &Segment, rank: usize, peer: usize, queue: &mut VecDeque<Moving<Outgoing>>) -> bool {
    let channel = segment.channel(rank, peer);
    let mut progress = false;
    while let Some(next) = queue.front_mut() {
        let Outgoing { header, from, bytes, .. } = &next.piece;
        let (address, left) = match next.moved.checked_sub(HEADER) {
            None => (header[next.moved..].as_ptr(), HEADER - next.moved),
            Some(sent) => (from.wrapping_add(sent), bytes - sent),
        };
        // SAFETY: a part of the header, or of the caller's buffer.
        let moved = unsafe { channel.write(address, left) };
        next.moved += moved;
        progress |= moved > 0;
        if next.moved == HEADER + bytes {
            queue.pop_front();
        } else if moved == 0 {
            break;
        }
    }
    progress
}

/// Moves what has come from one peer; tells whether anything was.
///
/// # Safety
/// As `run`.
unsafe fn receive(
    segment: &Segment,
    rank: usize,
    peer: usize,
    queue: &mut VecDeque<Moving<Incoming>>,
) -> Result<bool, Failure> {
    let channel = segment.channel(peer, rank);
    let mut progress = false;
    while let Some(next) = queue.front_mut() {
        let Incoming { header, to, bytes, .. } = &next.piece;
        let (address, left) = match next.moved.checked_sub(HEADER) {
            None => (next.heard[next.moved..].as_mut_ptr(), HEADER - next.moved),
            Some(heard) => (to.wrapping_add(heard), bytes - heard),
        };
        // SAFETY: a part of the header, or of the caller's buffer.
        let moved = unsafe { channel.read(address, left) };
        next.moved += moved;
        progress |= moved > 0;
        if next.moved >= HEADER && next.heard != *header {
            return Err(Failure::usage(format!(
                "rank {peer} does something else than rank {rank}: it sent {}, {} was awaited",
                words(&next.heard),
                words(header)
            )));
        }
        if next.moved == HEADER + bytes {
            queue.pop_front();
        } else if moved == 0 {
            break;
        }
    }
    Ok(progress)
}

/// A header for people.
fn words(header: &[u8; HEADER]) -> String {
    let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let bytes = u64::from_ne_bytes(header[8..].try_into().expect("eight bytes"));
    format!("{bytes} bytes of type {} for operation {:#x}", word(4), word(0))
}
