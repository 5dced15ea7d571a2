//! Takes the wait for the others out of each all-reduce: all ranks of a host have one clock, so the parts together say when
//! the last one came.
//!
//! So nothing has to be measured in the all-reduce itself, and no barrier is put before it. Where a rank of the step has no
//! part, or another clock, the last arrival is not known: the step stays as it is and is counted.

use super::part::{Doing, Part, Span, StepTimes};
use dtrain_types::{Generation, Step};
use std::collections::BTreeMap;

/// The arrivals at one all-reduce.
#[derive(Debug)]
struct Arrivals<'a> {
    clock: &'a str,
    one_clock: bool,
    ranks: u32,
    world: u32,
    last: u64,
}

/// Splits the spans of communication of all parts. Gives how many steps (of all ranks together) could not be split.
pub fn split(parts: &mut [Part]) -> u64 {
    let last = last_arrivals(parts);
    let mut whole = 0;
    for step in parts.iter_mut().flat_map(|part| &mut part.steps) {
        match last.get(&(step.generation, step.step)) {
            Some(&last) => split_step(step, last),
            None => whole += 1,
        }
    }
    whole
}

/// When the last rank came to the all-reduce of each step, where that is known.
fn last_arrivals(parts: &[Part]) -> BTreeMap<(Generation, Step), u64> {
    let mut seen: BTreeMap<(Generation, Step), Arrivals<'_>> = BTreeMap::new();
    for part in parts {
        for step in &part.steps {
            let Some(span) = communication(step) else { continue };
            let (clock, world) = (part.clock.as_str(), step.world.0);
            let fresh = Arrivals { clock, one_clock: true, ranks: 0, world, last: 0 };
            let arrivals = seen.entry((step.generation, step.step)).or_insert(fresh);
            arrivals.one_clock &= arrivals.clock == clock;
            arrivals.ranks += 1;
            arrivals.last = arrivals.last.max(span.begun);
        }
    }
    let known =
        seen.into_iter().filter(|(_, arrivals)| arrivals.one_clock && arrivals.ranks == arrivals.world);
    known.map(|(step, arrivals)| (step, arrivals.last)).collect()
}

fn communication(step: &StepTimes) -> Option<&Span> {
    step.spans.iter().find(|span| span.doing == Doing::Communication)
}

fn split_step(step: &mut StepTimes, last: u64) {
    let Some(at) = step.spans.iter().position(|span| span.doing == Doing::Communication) else { return };
    let span = step.spans[at];
    // Nobody leaves an all-reduce before the last one has come, but two cores may read a clock a moment apart.
    let met = last.clamp(span.begun, span.ended);
    if met > span.begun {
        step.spans[at].begun = met;
        step.spans.insert(at, Span { doing: Doing::Wait, ended: met, ..span });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{Incarnation, MemberId, Rank, WorldSize};

    /// Two ranks that come to the all-reduce of step 1 at 100 and 160 and leave it at 200.
    fn parts() -> Vec<Part> {
        let part = |rank: u32, begun| {
            let span = Span { doing: Doing::Communication, begun, ended: 200, micro_batch: None };
            let step = StepTimes {
                step: Step(1),
                generation: Generation(1),
                rank: Rank(rank),
                world: WorldSize(2),
                begun: 0,
                ended: 250,
                offered: None,
                spans: vec![span],
            };
            Part {
                member: MemberId(rank),
                incarnation: Incarnation(rank + 1),
                host: "here".into(),
                pid: 7,
                clock: "one".into(),
                to_unix: 0,
                steps: vec![step],
            }
        };
        vec![part(0, 100), part(1, 160)]
    }

    fn spans(part: &Part) -> Vec<(Doing, u64, u64)> {
        part.steps[0].spans.iter().map(|span| (span.doing, span.begun, span.ended)).collect()
    }

    #[test]
    fn who_comes_first_waits_and_who_comes_last_does_not() {
        let mut parts = parts();
        assert_eq!(split(&mut parts), 0);
        assert_eq!(spans(&parts[0]), [(Doing::Wait, 100, 160), (Doing::Communication, 160, 200)]);
        assert_eq!(spans(&parts[1]), [(Doing::Communication, 160, 200)]);
    }

    #[test]
    fn without_the_part_of_a_rank_nobody_knows_who_came_last() {
        let mut parts = parts();
        parts.pop();
        assert_eq!(split(&mut parts), 1);
        assert_eq!(spans(&parts[0]), [(Doing::Communication, 100, 200)]);
    }

    #[test]
    fn two_clocks_are_not_compared() {
        let mut parts = parts();
        parts[1].clock = "another".into();
        assert_eq!(split(&mut parts), 2);
        assert_eq!(spans(&parts[0]), [(Doing::Communication, 100, 200)]);
    }

    #[test]
    fn a_step_that_two_generations_made_is_two_steps() {
        let mut parts = parts();
        parts[1].steps[0].generation = Generation(2);
        assert_eq!(split(&mut parts), 2);
    }
}
