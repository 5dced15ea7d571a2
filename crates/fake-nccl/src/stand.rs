//! A rank that stands still inside a collective, so that a test can do something to it just there.
//!
//! `FAKE_NCCL_STAND=RANK:GROUP:PIPE` makes rank RANK of any communicator stop before its part of group GROUP, counted from 1
//! in each communicator, until it is aborted. It happens once for each time that a test makes the named pipe PIPE: whoever
//! stands takes the pipe away and writes its process id into it, and the reader knows that all is as it wants it.

use std::fs;
use std::io::Write;

/// What the variable says, if it is set.
fn wish() -> Option<(usize, u64, String)> {
    let text = std::env::var("FAKE_NCCL_STAND").ok()?;
    let mut parts = text.splitn(3, ':');
    let (rank, group) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((rank, group, parts.next()?.to_owned()))
}

/// Whether a rank may stand still in this group.
pub(crate) fn is_at(rank: usize, group: u64) -> bool {
    wish().is_some_and(|(of, at, _)| (of, at) == (rank, group))
}

/// Takes the pipe, if it is there, and tells who stands. *Blocks* until the reader has it open.
pub(crate) fn takes_its_turn() -> bool {
    let Some((_, _, pipe)) = wish() else { return false };
    // Of several processes that come here one succeeds.
    let taken = format!("{pipe}.{}", std::process::id());
    if fs::rename(&pipe, &taken).is_err() {
        return false;
    }
    let told = fs::OpenOptions::new().write(true).open(&taken);
    // Without a reader there is nobody to tell, and the rank stands all the same.
    let _ = told.and_then(|mut told| writeln!(told, "{}", std::process::id()));
    let _ = fs::remove_file(&taken);
    true
}
