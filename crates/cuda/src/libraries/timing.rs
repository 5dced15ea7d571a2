//! How the algorithms of a library are timed, and which of them is taken.
//!
//! It does not know what they compute.

use super::LibraryError;
use crate::CudaDevice;
use crate::driver::{Buffer, DriverError, Stream};
use crate::values::{Half, Storage};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long one candidate is timed at least, in a row and altogether.
const TIMED: Duration = Duration::from_millis(2);
/// Rows of launches that are timed, of which the fastest counts: the clock of a GPU rises with work.
const ROWS: usize = 5;
/// A library has to take at most so much of the time of dtrain's own kernel: it leaves the graph of a pass.
const WORTH: f64 = 0.95;

/// Repeats whose bits are compared before a candidate is timed that may give others each time.
const REPEATS: usize = 5;

/// Numbers that are drawn for an operand, a prime of them.
const DRAWN: usize = 1_048_573;

/// Memory with numbers of about 1, of either sign: zeros would take less power, and less time.
pub(super) fn numbers(
    device: &CudaDevice,
    storage: Storage,
    numbers: usize,
    seed: u32,
) -> Result<Buffer<u16>, DriverError> {
    let len = numbers * storage.bytes() / size_of::<u16>();
    let mut buffer = Buffer::new(device.gpu().context(), len)?;
    // The upper half of an f32 is a bf16; its lower half may be anything.
    let one = if storage == Storage::Half(Half::F16) { 0x3800u16 } else { 0x3f00 };
    let number = |i: usize| {
        let mixed = (i as u32 ^ seed).wrapping_mul(0x9e37_79b1);
        one | (mixed >> 16) as u16 & 0x80ff
    };
    let list: Vec<u16> = (0..len.min(DRAWN)).map(number).collect();
    let count = list.len();
    device.upload(&list, buffer.write().part(0..count))?;
    // The rest is that again: a host would take seconds to draw it.
    let mut there = list.len();
    while there < len {
        let more = there.min(len - there);
        let to = buffer.address() + 2 * there as u64;
        // SAFETY: both parts are of this memory, which is this device's, and they do not overlap.
        unsafe { device.stream().copy(buffer.address(), to, 2 * more)? };
        there += more;
    }
    device.finish()?;
    Ok(buffer)
}

/// What one of many in a row takes, at best.
pub(super) fn best(
    stream: &Stream,
    mut give: impl FnMut() -> Result<(), DriverError>,
) -> Result<Duration, DriverError> {
    give()?;
    stream.finish()?;
    let mut best = Duration::MAX;
    for _ in 0..ROWS {
        let (begun, mut count) = (Instant::now(), 0u32);
        while begun.elapsed() < TIMED / ROWS as u32 || count < 3 {
            give()?;
            count += 1;
            // What was given is not what is done: a GPU is behind its host.
            if count.is_multiple_of(16) {
                stream.finish()?;
            }
        }
        stream.finish()?;
        best = best.min(begun.elapsed() / count);
    }
    Ok(best)
}

/// What a library offers: nothing where it has no algorithm.
pub(super) fn offered<P>(candidates: Result<Vec<P>, LibraryError>) -> Result<Vec<P>, DriverError> {
    match candidates {
        Err(LibraryError::NoAlgorithm { .. }) => Ok(Vec::new()),
        candidates => Ok(candidates?),
    }
}

/// Those of the candidates that are right.
pub(super) fn right<P: Debug>(
    candidates: Vec<P>,
    is_right: impl Fn(&P) -> Result<bool, DriverError>,
) -> Result<Vec<P>, DriverError> {
    let mut right = Vec::new();
    for candidate in candidates {
        match usable(is_right(&candidate))? {
            Some(true) => right.push(candidate),
            Some(false) => tracing::warn!(
                ?candidate,
                "what a library offers is wrong, or never twice alike: passed over"
            ),
            None => {}
        }
    }
    Ok(right)
}

/// What comes of something that is done again and again, if that is the same each time.
pub(super) fn same_each_time<T: PartialEq>(
    once: impl Fn() -> Result<T, DriverError>,
) -> Result<Option<T>, DriverError> {
    let first = once()?;
    for _ in 1..REPEATS {
        if once()? != first {
            return Ok(None);
        }
    }
    Ok(Some(first))
}

/// Nothing of a candidate that is offered and then refused, or that there is no room for.
fn usable<T>(tried: Result<T, DriverError>) -> Result<Option<T>, DriverError> {
    match tried {
        Err(error @ (DriverError::Library(_) | DriverError::OutOfMemory { .. })) => {
            tracing::debug!(%error, "an algorithm of a library is passed over");
            Ok(None)
        }
        tried => tried.map(Some),
    }
}

/// The fastest candidate, if it is worth it, and what the best one took and dtrain's own kernel. *Units*: microseconds.
pub(super) fn chosen<P>(
    own: Duration,
    candidates: Vec<P>,
    time: impl Fn(&P) -> Result<Duration, DriverError>,
) -> Result<(Option<P>, [u64; 2]), DriverError> {
    let mut best: Option<(Duration, P)> = None;
    for candidate in candidates {
        let Some(took) = usable(time(&candidate))? else { continue };
        if best.as_ref().is_none_or(|(least, _)| took < *least) {
            best = Some((took, candidate));
        }
    }
    let micros = |time: Duration| time.as_micros() as u64;
    let found = best.as_ref().map_or(own, |(took, _)| *took);
    let worth = best.filter(|(took, _)| took.as_secs_f64() <= WORTH * own.as_secs_f64());
    Ok((worth.map(|(_, pin)| pin), [micros(found), micros(own)]))
}
