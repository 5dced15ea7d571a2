//! How the drill partition cuts: how many ranks each host has, and for how long the link between them is gone.

use crate::arguments::Drill;
use crate::config::{Config, Isolation};
use crate::error::CliError;
use std::time::Duration;

/// How long a cut lasts, in tenths of `detect`: where nothing else is said, and at least. In the usual one the cut host
/// ends its ranks, which it does after 25 tenths.
const USUAL: u32 = 30;
const SHORTEST: u32 = 15;
/// A host that is heard again needs part of `join_timeout` to be let in.
const TO_BE_LET_IN: u32 = 20;

/// How many ranks of so many each host has.
#[must_use]
pub fn shares(ranks: usize) -> [usize; 2] {
    [ranks.div_ceil(2), ranks / 2]
}

/// How long the link is cut.
///
/// *Errors*: the configuration has no two hosts, or the time is of no use; of kind usage.
pub fn cut_length(arguments: &Drill, config: &Config) -> Result<Duration, CliError> {
    let world = &config.world;
    let of = |key: &str, message: String, hint: &str| config.problem(key, message).hint(hint).into();
    if world.isolation == Isolation::Thread {
        let message = "the ranks of several hosts are processes".to_owned();
        return Err(of("isolation", message, "write isolation=process for the drill"));
    }
    if config.batch.derived {
        let message = "it is per rank, and a host comes and goes in the drill partition".to_owned();
        return Err(of("batch_size", message, "give global_batch and micro_batch instead"));
    }
    if world.ranks < 2 {
        let message = format!("{} rank cannot be divided between two hosts", world.ranks);
        return Err(of("ranks", message, "write ranks=2 for the drill partition"));
    }
    let tenths = |count: u32| world.detect * count / 10;
    let (least, most) = (tenths(SHORTEST), world.join_timeout.saturating_sub(tenths(TO_BE_LET_IN)));
    if least > most {
        let message =
            format!("{:?} is too short for a cut with detect {:?}", world.join_timeout, world.detect);
        return Err(of("join_timeout", message, "write a longer join_timeout or a shorter detect"));
    }
    let Some(seconds) = arguments.seconds else { return Ok(tenths(USUAL).min(most)) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(cut) if (least..=most).contains(&cut) => Ok(cut),
        _ => {
            let message = format!(
                "--seconds {seconds}: with detect {:?} and join_timeout {:?} a cut lasts from {} to {} seconds",
                world.detect,
                world.join_timeout,
                least.as_secs_f64(),
                most.as_secs_f64()
            );
            Err(CliError::usage(message).hint(
                "shorter ones are not noticed, and after longer ones the host has given up; without --seconds a \
                 fitting time is chosen",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_at_least_one_rank_of_two_or_more() {
        assert_eq!([2, 3, 4, 13].map(shares), [[1, 1], [2, 1], [2, 2], [7, 6]]);
    }
}
