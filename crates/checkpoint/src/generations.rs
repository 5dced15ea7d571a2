//! Generation numbers are used once in the life of a run folder, over all crashes.
//!
//! Checkpoints are named by generation and compared by it, and late input of an older generation is fenced by it; so
//! a supervisor that starts after a crash must not use a number again that the one before may have used. Numbers are
//! therefore reserved in durable blocks: what is left of a block at a crash is never used, which costs nothing.

use crate::{Disk, StoreError};
use dtrain_types::Generation;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::path::Path;

const FILE: &str = "generations";
const TEMPORARY: &str = ".tmp-generations";

/// Reserves the next `count` generation numbers of a run, all greater than `floor` and than any reserved before.
///
/// `floor` is the greatest generation that the ledger and the checkpoints know, so that a run folder whose file was
/// lost is still safe. Only the owner of the run may ask.
///
/// *Blocks* on the disk; the numbers are ours once it returns. *Errors*: the disk fails or the file is not ours.
pub fn reserve_generations(
    disk: &dyn Disk,
    run: &Path,
    floor: Generation,
    count: NonZeroU64,
) -> Result<RangeInclusive<u64>, StoreError> {
    let (path, temporary) = (run.join(FILE), run.join(TEMPORARY));
    let before = last_reserved(disk, &path).map_err(|error| StoreError::io("read", &path, error))?;
    let first = before.max(floor.0) + 1;
    let last = first + (count.get() - 1);
    let replace = || {
        match disk.remove_file(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        let mut out = disk.create(&temporary)?;
        out.write_all(format!("{last}\n").as_bytes())?;
        out.flush()?;
        out.sync()?;
        disk.rename(&temporary, &path)?;
        disk.sync_dir(run)
    };
    replace().map_err(|error| StoreError::io("write", &path, error))?;
    Ok(first..=last)
}

/// The greatest number reserved so far, 0 if none was.
fn last_reserved(disk: &dyn Disk, path: &Path) -> io::Result<u64> {
    let input = match disk.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        opened => opened?.0,
    };
    let mut text = String::new();
    input.take(32).read_to_string(&mut text)?;
    // Half of the numbers is more than any run uses; a file that says otherwise is not ours, and `+` cannot overflow.
    let number =
        text.strip_suffix('\n').and_then(|text| text.parse().ok()).filter(|last| *last <= u64::MAX / 2);
    number.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("`{text:.32}` is no generation number"))
    })
}
