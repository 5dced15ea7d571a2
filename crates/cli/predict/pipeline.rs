//! Work on many pieces by several workers at once, whose results come in the order of the pieces.
//!
//! It does not know what the work is.

use crate::error::CliError;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Pieces on their way for each worker: one in hand, one before it, one behind.
const AHEAD: usize = 3;

/// Gives each piece to a free worker and hands the results to `sink`, in the order of the pieces.
///
/// *Errors*: the first one in that order, whoever met it; everything before it has gone to `sink`. *Blocks* to the end.
pub fn ordered<W: Send, P: Send, T: Send>(
    workers: Vec<W>,
    mut next: impl FnMut() -> Result<Option<P>, CliError> + Send,
    work: impl Fn(&mut W, P) -> Result<T, CliError> + Sync,
    mut sink: impl FnMut(T) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let (room, taken) = sync_channel::<()>(workers.len() * AHEAD);
    let (pieces, queue) = channel::<(u64, P)>();
    let (results, done) = channel::<(u64, Result<Option<T>, CliError>)>();
    let queue = Mutex::new(queue);
    for _ in 0..workers.len() * AHEAD {
        // The channel was made for so many.
        let _ = room.try_send(());
    }
    let (queue, work) = (&queue, &work);
    // What is moved in here is gone before the threads are waited for: that ends them.
    std::thread::scope(move |scope| {
        for mut worker in workers {
            let results = results.clone();
            scope.spawn(move || {
                while let Some((index, piece)) = take(queue) {
                    if results.send((index, work(&mut worker, piece).map(Some))).is_err() {
                        return;
                    }
                }
            });
        }
        scope.spawn(move || {
            let mut index = 0;
            while taken.recv().is_ok() {
                let end = match next() {
                    Ok(Some(piece)) => {
                        if pieces.send((index, piece)).is_err() {
                            return;
                        }
                        index += 1;
                        continue;
                    }
                    Ok(None) => Ok(None),
                    Err(error) => Err(error),
                };
                // Nobody waits for it where the results are not wanted any more.
                let _ = results.send((index, end));
                return;
            }
        });
        let mut early = BTreeMap::new();
        let mut expected = 0;
        for (index, result) in &done {
            early.insert(index, result);
            while let Some(result) = early.remove(&expected) {
                let Some(result) = result? else { return Ok(()) };
                sink(result)?;
                expected += 1;
                // A reader that is through wants no more room.
                let _ = room.try_send(());
            }
        }
        Err(CliError::failed("a worker ended before its work was done"))
    })
}

fn take<P>(queue: &Mutex<Receiver<(u64, P)>>) -> Option<(u64, P)> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn numbers(count: u64) -> impl FnMut() -> Result<Option<u64>, CliError> {
        let mut numbers = 0..count;
        move || Ok(numbers.next())
    }

    #[test]
    fn results_come_in_the_order_of_the_pieces_whoever_is_faster() {
        for workers in 1..=3 {
            let mut seen = Vec::new();
            let slow = |worker: &mut u32, number: u64| {
                std::thread::sleep(Duration::from_micros(u64::from(*worker) * (number % 7) * 50));
                Ok(number * 2)
            };
            ordered((0..workers).collect(), numbers(200), slow, |number| {
                seen.push(number);
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, (0..200).map(|number| number * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_in_order_ends_it_and_what_came_before_is_kept() {
        let mut seen = Vec::new();
        let refuse = |_: &mut (), number: u64| match number {
            50.. => Err(CliError::failed(format!("number {number}"))),
            _ => Ok(number),
        };
        let error = ordered(vec![(), ()], numbers(1000), refuse, |number| {
            seen.push(number);
            Ok(())
        });
        assert!(error.unwrap_err().render().contains("number 50"));
        assert_eq!(seen.len(), 50);
    }

    #[test]
    fn who_takes_no_more_stops_the_reading_too() {
        let full = |_| Err(CliError::failed("the disk is full"));
        let endless = || Ok(Some(0));
        let error = ordered(vec![(), ()], endless, |_, piece: u64| Ok(piece), full);
        assert!(error.unwrap_err().render().contains("disk is full"));
    }
}
