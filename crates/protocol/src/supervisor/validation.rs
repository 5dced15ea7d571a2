//! Validations: the parts of all ranks, merged in tree order, recorded once each.
//!
//! This file does not know what is counted, only that sums have one order and counts add up.

use crate::effect::Validation;
use crate::message::ValidationPart;
use dtrain_types::{Fold, MicroRange, Rank, Step, Trailer, roots};
use std::collections::{BTreeMap, VecDeque};

/// The validations that are pending, and what is reported of them; each by its step.
#[derive(Debug, Default)]
pub(super) struct Validations {
    /// Due after a step of this generation, not recorded yet; in order.
    pending: VecDeque<Step>,
    parts: BTreeMap<Step, BTreeMap<Rank, ValidationPart>>,
    /// The newest that is recorded; 0 is none.
    done: Step,
    /// Whether somebody still says whether that is enough.
    judging: bool,
}

impl Validations {
    /// Nothing is pending; this is the newest that is recorded.
    pub fn new(done: Step) -> Self {
        Self { done, ..Self::default() }
    }

    /// The newest that is recorded.
    pub fn done(&self) -> Step {
        self.done
    }

    /// Up to which step members may go on behind validations: they are recorded and judged.
    pub fn told(&self) -> Step {
        if self.judging { Step(self.done.0.saturating_sub(1)) } else { self.done }
    }

    /// What was recorded last is to be judged: nobody goes on before.
    pub fn judge(&mut self) {
        self.judging = true;
    }

    /// Whether a validation waits for its judgement.
    pub fn awaits_judgement(&self) -> bool {
        self.judging
    }

    /// The validation after `step` is judged; says whether that was waited for.
    pub fn judged(&mut self, step: Step) -> bool {
        let awaited = self.judging && self.done == step;
        self.judging &= !awaited;
        awaited
    }

    /// A step owes a validation, unless it is recorded already: steps may be made again.
    pub fn owe(&mut self, step: Step) {
        if step > self.done {
            self.pending.push_back(step);
        }
    }

    /// A new generation begins after `pending`: whatever else was pending is pending again when its step is made again, and parts
    /// of other ranges count no more.
    pub fn restart(&mut self, pending: Option<Step>) {
        self.parts.clear();
        self.pending = pending.into_iter().collect();
    }

    /// Whether everything that steps up to this one owe is recorded.
    pub fn is_settled(&self, step: Step) -> bool {
        self.pending.front().is_none_or(|pending| *pending > step)
    }

    /// Takes in what one rank reports; what is recorded already changes nothing. Says whether there was anything new.
    pub fn take(&mut self, rank: Rank, parts: &[ValidationPart]) -> bool {
        let done = self.done;
        let mut new = false;
        for part in parts.iter().filter(|part| part.step > done) {
            new |= self.parts.entry(part.step).or_default().insert(rank, part.clone()).is_none();
        }
        new
    }

    /// The oldest pending validation, merged, once all `world` ranks reported it.
    ///
    /// *Errors*: the rank to blame and what is wrong with its part, in words.
    pub fn next(&mut self, world: u32, count: u32) -> Result<Option<Validation>, (Rank, String)> {
        let Some(step) = self.pending.front().copied() else { return Ok(None) };
        let parts = self.parts.get(&step);
        let has = |rank: &Rank| parts.is_some_and(|parts| parts.contains_key(rank));
        // A rank tells of its validations in their order.
        let others = self.parts.iter().flat_map(|(at, of)| of.keys().map(move |rank| (*at, *rank)));
        if let Some((at, rank)) = others.into_iter().find(|(_, rank)| !has(rank)) {
            return Err((rank, format!("validation after step {at}, it is due after step {step}")));
        }
        let Some(parts) = parts.filter(|parts| parts.len() == world as usize) else { return Ok(None) };
        let merged = merge(step, parts, count)?;
        self.done = step;
        self.pending.pop_front();
        self.parts.remove(&step);
        Ok(Some(merged))
    }

    /// The ranks that have not reported the oldest pending validation; none if nothing is pending.
    pub fn missing(&self, world: u32) -> Vec<Rank> {
        let Some(step) = self.pending.front() else { return Vec::new() };
        let has = |rank: &Rank| self.parts.get(step).is_some_and(|parts| parts.contains_key(rank));
        (0..world).map(Rank).filter(|rank| !has(rank)).collect()
    }
}

fn merge(
    step: Step,
    parts: &BTreeMap<Rank, ValidationPart>,
    count: u32,
) -> Result<Validation, (Rank, String)> {
    let (first_rank, first) = parts.first_key_value().expect("all ranks reported, and a world has one");
    let mut leaves: Vec<(MicroRange, Trailer, Rank)> = Vec::new();
    let mut counts = vec![0u64; first.counts.len()];
    for (rank, part) in parts {
        let (got, want) = (part.counts.len(), counts.len());
        if got != want {
            return Err((
                *rank,
                format!("validation after step {step}: {got} counts, rank {first_rank} has {want}"),
            ));
        }
        for (sum, count) in counts.iter_mut().zip(&part.counts) {
            *sum = sum.wrapping_add(*count);
        }
        leaves.extend(part.parts.iter().map(|(range, trailer)| (*range, *trailer, *rank)));
    }
    leaves.sort_by_key(|(range, _, _)| *range);
    let mut next = 0;
    for (range, _, rank) in &leaves {
        // `Fold` asserts this: a peer's word must be checked before.
        if range.lo != next || range.hi <= range.lo || range.hi > count || roots(*range, count) != [*range] {
            return Err((
                *rank,
                format!("validation after step {step}: {range:?} after {next} of {count} micro-batches"),
            ));
        }
        next = range.hi;
    }
    if next != count {
        return Err((
            *first_rank,
            format!("validation after step {step}: {next} of {count} micro-batches are there"),
        ));
    }
    let ranges: Vec<MicroRange> = leaves.iter().map(|(range, _, _)| *range).collect();
    let trailers: Vec<Trailer> = leaves.iter().map(|(_, trailer, _)| *trailer).collect();
    let trailer = Fold::new(&ranges, count).run(&trailers, Trailer::merge);
    Ok(Validation { step, trailer, counts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::cut_evenly;

    fn leaf(m: u32) -> Trailer {
        Trailer { loss: 0.1 * f64::from(m + 1).powi(3), weight: 1.0, samples: 1, ..Trailer::EMPTY }
    }

    fn parts(count: u32, world: u32) -> Vec<ValidationPart> {
        let sum = |root: MicroRange| {
            let leaves: Vec<MicroRange> =
                (root.lo..root.hi).map(|m| MicroRange { lo: m - root.lo, hi: m - root.lo + 1 }).collect();
            let values: Vec<Trailer> = (root.lo..root.hi).map(leaf).collect();
            Fold::new(&leaves, root.len()).run(&values, Trailer::merge)
        };
        cut_evenly(count, world)
            .into_iter()
            .map(|range| ValidationPart {
                step: Step(4),
                parts: roots(range, count).into_iter().map(|root| (root, sum(root))).collect(),
                counts: vec![u64::from(range.len()), 1],
            })
            .collect()
    }

    fn run(count: u32, parts: &[ValidationPart]) -> Result<Option<Validation>, (Rank, String)> {
        let mut validations = Validations::default();
        validations.owe(Step(4));
        for (rank, part) in parts.iter().enumerate() {
            validations.take(Rank(rank as u32), std::slice::from_ref(part));
        }
        validations.next(parts.len() as u32, count)
    }

    #[test]
    fn the_merged_loss_has_the_same_bits_for_every_world_size() {
        for count in [1, 2, 5, 13] {
            let one = run(count, &parts(count, 1)).unwrap().unwrap();
            for world in 2..=6 {
                let many = run(count, &parts(count, world)).unwrap().unwrap();
                assert_eq!(many.trailer.loss.to_bits(), one.trailer.loss.to_bits(), "{count} over {world}");
                assert_eq!(many.counts, [u64::from(count), u64::from(world)]);
            }
        }
    }

    #[test]
    fn a_validation_waits_for_all_ranks_and_for_its_step_and_is_recorded_once() {
        let both = parts(4, 2);
        let mut validations = Validations::default();
        assert!(validations.take(Rank(0), &both[..1]));
        assert!(validations.take(Rank(1), &both[1..]));
        assert_eq!(validations.next(2, 4), Ok(None), "its step is not committed");
        validations = Validations::default();
        validations.owe(Step(4));
        assert!(validations.take(Rank(0), &both[..1]));
        assert_eq!(validations.next(2, 4), Ok(None));
        assert_eq!(validations.missing(2), [Rank(1)]);
        assert!(validations.is_settled(Step(3)) && !validations.is_settled(Step(4)));
        assert!(validations.take(Rank(1), &both[1..]));
        assert!(matches!(validations.next(2, 4), Ok(Some(_))));
        assert!(!validations.take(Rank(1), &both[1..]), "a repeated report is nothing new");
        assert_eq!(validations.next(2, 4), Ok(None));
        assert!(validations.is_settled(Step(9)) && validations.missing(2).is_empty());
    }

    #[test]
    fn parts_that_are_no_partition_into_subtrees_are_refused_and_never_panic() {
        let good = parts(5, 2);
        let mut bad: Vec<Vec<ValidationPart>> = vec![good.clone(); 7];
        bad[0][1].parts.clear();
        bad[1][1].parts[0].0 = MicroRange { lo: 3, hi: 9 };
        bad[2][1].parts[0].0 = MicroRange { lo: 9, hi: 3 };
        bad[3][0].parts[0].0 = MicroRange { lo: 1, hi: 3 };
        bad[4][1].counts.push(1);
        bad[5][1].step = Step(3);
        bad[6][0].step = Step(5);
        for parts in bad {
            assert!(run(5, &parts).is_err(), "{parts:?}");
        }
        assert!(run(5, &good).is_ok());
    }
}
