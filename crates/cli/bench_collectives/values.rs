//! What ranks put into their buffers, and what must come out: other values for each rank, element and round, whose sums
//! round, so that an addition in another order has other bits.

use super::case::Case;
use dtrain_collective::{Assignment, BLOCK, Chunks, CountPlan, OpKind, sum_block};
use dtrain_types::{Generation, Rank, Wire};
use std::ops::Range;

/// Element `element` of what `rank` has in `round`: from -0.5 up to 0.5, in steps of 2^-24.
fn value(rank: usize, round: u32, element: usize) -> f32 {
    let salt = (rank as u32).wrapping_mul(0x85EB_CA6B) ^ round.wrapping_mul(0xC2B2_AE35);
    let mut bits = (element as u32).wrapping_mul(0x9E37_79B1) ^ salt;
    bits = (bits ^ bits >> 15).wrapping_mul(0x2C1B_3C6D);
    bits ^= bits >> 12;
    ((bits >> 8) as i32 - (1 << 23)) as f32 * (1.0 / (1 << 24) as f32)
}

/// Writes what `rank` has in `round` from `first` on, rounded as the sums are.
pub fn fill(out: &mut [f32], wire: Wire, rank: usize, round: u32, first: usize) {
    for (place, out) in out.iter_mut().enumerate() {
        *out = value(rank, round, first + place);
    }
    wire.round(out);
}

/// Knows the result of every operation, by plain sums of one block after the other.
pub struct Reference {
    case: Case,
    rank: usize,
    /// How each rank's chunk is added up.
    orders: Vec<CountPlan>,
    leaves: Vec<Vec<f32>>,
    stack: Vec<f32>,
}

impl Reference {
    pub fn new(case: &Case, rank: usize) -> Self {
        let ranks = case.ranks as usize;
        let membership = |rank| Assignment { generation: Generation(1), rank, ranges: case.ranges() };
        let order = |rank| CountPlan::new(&membership(Rank(rank)), case.mode(), case.ranks);
        let orders: Vec<CountPlan> = (0..case.ranks).map(order).collect();
        let depth = orders.iter().map(|plan| plan.data_order().depth()).max().unwrap_or(1);
        let stack = vec![0.0; depth * BLOCK];
        Self { case: case.clone(), rank, orders, leaves: vec![vec![0.0; BLOCK]; ranks], stack }
    }

    /// Compares what this rank has after the operation with what it must have.
    ///
    /// *Errors*: a sentence with the first element that is wrong.
    pub fn check(&mut self, got: &[f32], round: u32) -> Result<(), String> {
        let ranks = self.case.ranks as usize;
        let even = Chunks::even(got.len(), ranks);
        match self.case.operation {
            OpKind::AllReduce => {
                (0..ranks).try_for_each(|owner| self.check_sum(got, round, even.chunk(owner), owner))
            }
            OpKind::ReduceScatter => self.check_sum(got, round, even.chunk(self.rank), self.rank),
            OpKind::AllGather => (0..ranks)
                .try_for_each(|from| self.check_value(got, round, even.chunk(from), from, |value| value)),
            OpKind::Broadcast => self.check_value(got, round, 0..got.len(), 0, |value| value),
            OpKind::Barrier => self.check_value(got, round, 0..got.len(), self.rank, |value| value),
            OpKind::Copy => {
                let sources = self.case.sources().len();
                let chunks = Chunks::even(got.len(), sources);
                let own = |source: &usize| self.rank >= sources || *source == self.rank;
                let seen: Vec<usize> = (0..sources).filter(own).collect();
                seen.into_iter().try_for_each(|from| {
                    self.check_value(got, round, chunks.chunk(from), from, |value| value)
                })
            }
        }
    }

    /// Compares a buffer whose signs were flipped with what its rank had put there.
    ///
    /// *Errors*: as [`Reference::check`].
    pub fn check_flipped(&mut self, got: &[f32], round: u32) -> Result<(), String> {
        self.check_value(got, round, 0..got.len(), self.rank, |value| -value)
    }

    fn check_sum(&mut self, got: &[f32], round: u32, part: Range<usize>, owner: usize) -> Result<(), String> {
        for start in part.clone().step_by(BLOCK) {
            let n = BLOCK.min(part.end - start);
            for (rank, leaf) in self.leaves.iter_mut().enumerate() {
                fill(&mut leaf[..n], self.case.wire(), rank, round, start);
            }
            let Self { case, orders, leaves, stack, .. } = self;
            sum_block(orders[owner].data_order(), case.wire(), n, stack, |leaf| &leaves[leaf]);
            same(&got[start..start + n], &stack[..n], start)?;
        }
        Ok(())
    }

    fn check_value(
        &mut self,
        got: &[f32],
        round: u32,
        part: Range<usize>,
        rank: usize,
        change: impl Fn(f32) -> f32,
    ) -> Result<(), String> {
        for start in part.clone().step_by(BLOCK) {
            let n = BLOCK.min(part.end - start);
            let want = &mut self.stack[..n];
            fill(want, self.case.wire(), rank, round, start);
            want.iter_mut().for_each(|value| *value = change(*value));
            same(&got[start..start + n], want, start)?;
        }
        Ok(())
    }
}

/// *Errors*: the first element with other bits; the elements are counted from `first`.
fn same(got: &[f32], want: &[f32], first: usize) -> Result<(), String> {
    let wrong = |(got, want): (&f32, &f32)| u32::from(got.to_bits() != want.to_bits());
    // Counted and not searched, because the compiler makes that into vector code.
    if got.iter().zip(want).map(wrong).sum::<u32>() == 0 {
        return Ok(());
    }
    let at = got.iter().zip(want).position(|pair| wrong(pair) == 1).expect("one was counted");
    Err(format!("element {} is {:e} and not {:e}", first + at, got[at], want[at]))
}

#[cfg(test)]
mod tests {
    use super::super::case::example;
    use super::*;
    use dtrain_types::to_bf16;

    /// What each rank would have after a right operation, found element by element.
    fn right(case: &Case, rank: usize, round: u32) -> Vec<f32> {
        let (ranks, floats) = (case.ranks as usize, case.floats());
        let element = |at: usize| {
            let rounded = |x| if case.bf16 { to_bf16(x) } else { x };
            let values: Vec<f32> = (0..ranks).map(|rank| rounded(value(rank, round, at))).collect();
            let owner = (0..ranks).find(|owner| Chunks::even(floats, ranks).chunk(*owner).contains(&at));
            match case.operation {
                // Three ranks: the tree is the sum from left to right.
                OpKind::AllReduce | OpKind::ReduceScatter => {
                    values.iter().copied().reduce(|a, b| rounded(a + b))
                }
                OpKind::AllGather => owner.map(|owner| values[owner]),
                OpKind::Broadcast => Some(values[0]),
                OpKind::Barrier => Some(values[rank]),
                OpKind::Copy => {
                    let sources = case.sources().len();
                    let chunks = Chunks::even(floats, sources);
                    (0..sources).find(|source| chunks.chunk(*source).contains(&at)).map(|from| values[from])
                }
            }
        };
        (0..floats).map(|at| element(at).expect("every element has an owner")).collect()
    }

    #[test]
    fn a_right_result_passes_and_one_wrong_bit_anywhere_does_not() {
        let floats = BLOCK + 37;
        for (operation, bf16) in OpKind::ALL.into_iter().flat_map(|it| [false, true].map(|bf16| (it, bf16))) {
            let case = Case { bf16, ..example(operation, 3, floats as u64) };
            for rank in 0..3 {
                let mut reference = Reference::new(&case, rank);
                let mut got = right(&case, rank, 5);
                assert_eq!(reference.check(&got, 5), Ok(()), "{operation:?}");
                assert!(reference.check(&got, 6).is_err(), "{operation:?} takes the values of another round");
                let mut caught = 0;
                for at in [0, floats / 2, floats - 1] {
                    let before = got[at];
                    got[at] = f32::from_bits(before.to_bits() ^ 1);
                    caught += usize::from(reference.check(&got, 5).is_err());
                    got[at] = before;
                }
                let partly = operation == OpKind::ReduceScatter || operation == OpKind::Copy && rank < 2;
                assert!(
                    if partly { caught >= 1 } else { caught == 3 },
                    "{operation:?} rank {rank}: {caught}"
                );
            }
        }
    }

    #[test]
    fn sums_in_another_order_have_other_bits() {
        let sum = |order: [usize; 4]| -> Vec<u32> {
            let at =
                |at| order.iter().map(|rank| value(*rank, 0, at)).reduce(|a, b| a + b).unwrap().to_bits();
            (0..1000).map(at).collect()
        };
        assert_ne!(sum([0, 1, 2, 3]), sum([3, 2, 1, 0]));
    }

    #[test]
    fn sums_that_were_not_rounded_are_wrong_where_they_should_have_been_and_the_other_way_round() {
        let case = |bf16| Case { bf16, ..example(OpKind::AllReduce, 3, 100) };
        for bf16 in [false, true] {
            let said = Reference::new(&case(bf16), 0).check(&right(&case(!bf16), 0, 0), 0);
            assert!(said.is_err());
        }
    }

    #[test]
    fn flipped_signs_are_compared_too() {
        let case = example(OpKind::AllReduce, 2, 100);
        let mut got: Vec<f32> = (0..100).map(|at| -value(1, 0, at)).collect();
        let mut reference = Reference::new(&case, 1);
        assert_eq!(reference.check_flipped(&got, 0), Ok(()));
        got[99] = -got[99];
        let said = reference.check_flipped(&got, 0).unwrap_err();
        assert!(said.starts_with("element 99 is "), "{said}");
    }
}
