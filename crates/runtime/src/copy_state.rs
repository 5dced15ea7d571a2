//! How a rank comes by the state of its peers: window by window through the gradient buffers, into fresh memory.
//!
//! All ranks of a generation take part. The state is one row of numbers, section after section; a window of it is as
//! long as a gradient buffer, and each source lays a slice of it into its own. A copy is swapped in only when it is whole
//! and has the digest that its source has; until then the rank keeps what it had (S12). No source makes a step meanwhile.
//! This file does not know why somebody needs a copy.

use dtrain_collective::{Backend, Chunks, CollectiveError, Op, Sequence};
use dtrain_engine::{EngineError, Replica, Section, State};
use dtrain_types::{Rank, Step, WorldSize};
use std::ops::Range;

/// Elements that a digest fills, each holding four of its bytes as bits.
const DIGEST: usize = 8;

/// Who has the state and who needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    sources: Vec<Rank>,
    targets: Vec<Rank>,
    own: Rank,
}

impl Roles {
    /// The roles in a world where `sources` have the state.
    #[must_use]
    pub fn new(sources: &[Rank], world: WorldSize, own: Rank) -> Self {
        let targets = (0..world.0).map(Rank).filter(|rank| !sources.contains(rank)).collect();
        Self { sources: sources.to_vec(), targets, own }
    }

    fn needs(&self) -> bool {
        self.targets.contains(&self.own)
    }
}

/// Gives this rank the state of `step`, or lends its own to those who need it. Without anyone in need nothing is moved.
///
/// *Blocks* until all ranks have what they need. *Errors*: the collectives broke off, or what came is not the state; the
/// replica is then as before.
pub fn copy_state(
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    replica: &mut dyn Replica,
    step: Step,
    roles: &Roles,
) -> Result<(), CollectiveError> {
    if roles.targets.is_empty() {
        return Ok(());
    }
    let len = backend.arena().geometry().len;
    let mut fresh = roles.needs().then(|| State::zeros(replica.about().state));
    let total: usize = replica.about().state.lengths().iter().sum();
    let mut turn = |backend: &mut dyn Backend, sources: &[Rank]| {
        let op = Op::Copy { sources, targets: &roles.targets, len: usize::MAX };
        sequence.0 += 1;
        backend.start(*sequence, &op).and_then(|()| backend.finish(*sequence))
    };
    let place = roles.sources.iter().position(|rank| *rank == roles.own);
    let mut from = 0;
    while from < total {
        let window = from..total.min(from + len);
        if let Some(place) = place {
            let chunk = Chunks::even(len, roles.sources.len()).chunk(place);
            let slot = backend.arena().lease(0);
            state(replica)?.read(offset(&chunk, from, total), &mut slot[clip(&chunk, window.len())]);
        }
        turn(backend, &roles.sources)?;
        if let Some(fresh) = &mut fresh {
            fresh.write(window.clone(), backend.arena().lease_part(0, 0..window.len()));
        }
        from = window.end;
    }
    if let Some(fresh) = &mut fresh {
        fresh.applied = step;
    }
    // A model of fewer parameters than a digest has words is compared by the supervisor alone.
    if len >= DIGEST {
        let first = &roles.sources[..1];
        if first[0] == roles.own {
            let words = digest_words(state(replica)?);
            backend.arena().lease_part(0, 0..DIGEST).copy_from_slice(&words);
        }
        turn(backend, first)?;
        let told = &*backend.arena().lease_part(0, 0..DIGEST);
        let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        if fresh.as_ref().is_some_and(|fresh| !same(told, &digest_words(fresh))) {
            let reason = "the copied state has another digest than its source".to_owned();
            return Err(CollectiveError::Aborted { reason });
        }
    }
    if let Some(fresh) = &mut fresh {
        replica.swap_state(fresh).map_err(broken)?;
    }
    Ok(())
}

fn state(replica: &mut dyn Replica) -> Result<&State, CollectiveError> {
    replica.bring_state().map_err(broken)
}

fn broken(error: EngineError) -> CollectiveError {
    CollectiveError::Device { what: error.to_string() }
}

/// The part of a chunk that lies inside a window of `len` elements.
fn clip(chunk: &Range<usize>, len: usize) -> Range<usize> {
    chunk.start.min(len)..chunk.end.min(len)
}

/// The same part, counted in the state.
fn offset(chunk: &Range<usize>, from: usize, total: usize) -> Range<usize> {
    (from + chunk.start).min(total)..(from + chunk.end).min(total)
}

fn digest_words(state: &State) -> [f32; DIGEST] {
    let digest = state.state_digest();
    let mut words = [0.0f32; DIGEST];
    for (word, bytes) in words.iter_mut().zip(digest.chunks_exact(4)) {
        *word = f32::from_bits(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    }
    words
}

/// A state as one row of numbers, section after section.
trait Row {
    fn read(&self, range: Range<usize>, into: &mut [f32]);
    fn write(&mut self, range: Range<usize>, from: &[f32]);
}

impl Row for State {
    fn read(&self, range: Range<usize>, into: &mut [f32]) {
        let lengths = Section::ALL.map(|section| self.section(section).len());
        for (section, inside, at) in parts(lengths, range) {
            into[at].copy_from_slice(&self.section(section)[inside]);
        }
    }

    fn write(&mut self, range: Range<usize>, from: &[f32]) {
        let lengths = Section::ALL.map(|section| self.section(section).len());
        for (section, inside, at) in parts(lengths, range) {
            self.section_mut(section)[inside].copy_from_slice(&from[at]);
        }
    }
}

/// The sections that `range` of the row meets: which, where in the section, and where in the range.
fn parts(
    lengths: [usize; Section::COUNT],
    range: Range<usize>,
) -> impl Iterator<Item = (Section, Range<usize>, Range<usize>)> {
    let mut start = 0;
    Section::ALL.into_iter().zip(lengths).filter_map(move |(section, len)| {
        let (first, end) = (start, start + len);
        start = end;
        let met = range.start.max(first)..range.end.min(end);
        let inside = met.start.wrapping_sub(first)..met.end.wrapping_sub(first);
        let at = met.start.wrapping_sub(range.start)..met.end.wrapping_sub(range.start);
        (met.start < met.end).then_some((section, inside, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_engine::StateShape;

    #[test]
    fn a_state_is_one_row_in_whatever_windows_it_is_read() {
        let shape = StateShape { parameters: 7, stats: 2, moments: 2, kept: 0, averages: false };
        let mut state = State::zeros(shape);
        let mut next = 0.0;
        for section in Section::ALL {
            state.section_mut(section).fill_with(|| {
                next += 1.0;
                next
            });
        }
        let row: Vec<f32> = (1..=23).map(|x| x as f32).collect();
        assert_eq!(shape.lengths().iter().sum::<usize>(), 23);
        for window in 1..=24 {
            let mut copy = State::zeros(shape);
            for from in (0..23).step_by(window) {
                let range = from..23.min(from + window);
                let mut values = vec![0.0; range.len()];
                state.read(range.clone(), &mut values);
                assert_eq!(values, row[range.clone()]);
                copy.write(range, &values);
            }
            assert_eq!(copy.state_digest(), state.state_digest(), "windows of {window}");
        }
    }

    #[test]
    fn the_slices_of_all_sources_make_the_window() {
        for (len, sources, used) in [(10, 3, 10), (10, 3, 4), (5, 7, 5), (5, 7, 1)] {
            let mut next = 0;
            for place in 0..sources {
                let chunk = clip(&Chunks::even(len, sources).chunk(place), used);
                assert_eq!(chunk.start, next);
                next = chunk.end;
            }
            assert_eq!(next, used);
        }
    }
}
