//! How a rank comes by its two inherited things: the control link and the memory it shares with its neighbours.
//!
//! The parent makes a socket pair and sends the memory's descriptor through it before the child exists; the child
//! finds its end of the pair as standard input. So nothing is passed by number, nothing stays behind in /dev/shm,
//! and no descriptor leaks into a sibling. This file does not know what is said over the link.

use dtrain_types::{Incarnation, MemberId};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The variable that tells a process that it is a rank: `MEMBER:LIFE:PID-OF-PARENT`.
pub const HANDLES_VARIABLE: &str = "DTRAIN_RANK_HANDLES";

/// The variable that tells a process that it is a keeper: one that holds the ranks of a host.
pub const KEEPER_VARIABLE: &str = "DTRAIN_KEEPER";

/// The variable that has a keeper die with the supervisor that started it, as for a drill that must leave nothing behind.
pub const TETHER_VARIABLE: &str = "DTRAIN_TETHERED";

const GREETING: u8 = b'S';

/// What a rank holds before it has said a word.
#[derive(Debug)]
pub struct RankHandles {
    /// The member this rank is.
    pub member: MemberId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its end of the control link.
    pub link: UnixStream,
    /// The memory that all ranks of this host map, where there is one.
    pub arena: Option<OwnedFd>,
}

/// Sends the shared memory (or its absence) to the other end of a fresh pair.
///
/// *Errors*: of the system call.
pub fn offer(link: &UnixStream, arena: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = arena.map(|fd| [fd]);
    if let Some(fd) = &descriptors {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fd)), "room for one descriptor");
    }
    rustix::net::sendmsg(link, &[IoSlice::new(&[GREETING])], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Takes what the parent offered. *Blocks* until it is there; it always is, because it was sent before the spawn.
///
/// *Errors*: of the system call, or when the first byte is not the parent's.
pub fn accept(member: MemberId, incarnation: Incarnation, link: UnixStream) -> io::Result<RankHandles> {
    let arena = accept_memory(&link)?;
    Ok(RankHandles { member, incarnation, link, arena })
}

/// The memory that the parent offered, if it did. *Blocks* and *errors* as [`accept`].
pub fn accept_memory(link: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    let got = rustix::net::recvmsg(
        link,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if got.bytes != 1 || byte[0] != GREETING {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "standard input is not a control link"));
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// The handles of this process, if its parent made it a rank.
///
/// It arranges that this process dies with its parent, also when that is killed, before anything else.
///
/// *Errors*: a variable that no parent wrote, or a parent that is gone already.
pub fn inherited() -> io::Result<Option<RankHandles>> {
    let Some(text) = std::env::var_os(HANDLES_VARIABLE) else { return Ok(None) };
    let wrong = || {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{HANDLES_VARIABLE} is set, but not by dtrain"))
    };
    let text = text.into_string().map_err(|_| wrong())?;
    let mut parts = text.splitn(3, ':');
    let mut part = || parts.next().ok_or_else(wrong);
    let (member, incarnation, parent) = (part()?, part()?, part()?);
    let member = MemberId(member.parse().map_err(|_| wrong())?);
    let incarnation = Incarnation(incarnation.parse().map_err(|_| wrong())?);
    die_with(parent.parse().map_err(|_| wrong())?)?;
    let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    accept(member, incarnation, link).map(Some)
}

/// Has the kernel kill this process when `parent` ends, however that happens.
///
/// *Errors*: it is gone already.
pub fn die_with(parent: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The parent may have died between the spawn and the line above; then no signal will ever come.
    if rustix::process::getppid().map(rustix::process::Pid::as_raw_pid) != Some(parent) {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process that started this one is gone"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_descriptor_travels_through_the_pair_and_names_the_same_file() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"arena").unwrap();
        offer(&ours, Some(file.as_fd())).unwrap();
        let handles = accept(MemberId(3), Incarnation(1), theirs).unwrap();
        let mut copy = std::fs::File::from(handles.arena.unwrap());
        copy.rewind().unwrap();
        let mut text = String::new();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), handles.member), ("arena", MemberId(3)));
    }

    #[test]
    fn a_seat_without_shared_memory_is_a_seat_too() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        offer(&ours, None).unwrap();
        assert!(accept(MemberId(0), Incarnation(1), theirs).unwrap().arena.is_none());
    }

    #[test]
    fn a_stranger_on_standard_input_is_refused() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"hello").unwrap();
        assert!(accept(MemberId(0), Incarnation(1), theirs).is_err());
    }
}
