//! The state of a replica: all that a copy, a checkpoint or a digest must cover, and nothing else.
//!
//! It does not know how it is updated or where it is stored.

use crate::flat::{Flat, FloatsOnLoan};
use crate::layout::Section;
use dtrain_types::Step;
use std::ops::Range;

/// Parameters, running statistics and optimizer state after `applied` updates.
#[derive(Clone, Debug)]
pub struct State {
    /// Optimizer updates done.
    pub applied: Step,
    sections: [Flat; Section::COUNT],
}

/// Lengths of the sections of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    /// Elements of the parameters.
    pub parameters: usize,
    /// Elements of the running statistics.
    pub stats: usize,
    /// Buffers as long as the parameters that the optimizer keeps: 0 to 2.
    pub moments: usize,
    /// Elements that an optimizer keeps in place of such buffers ([`Layout::kept`](crate::Layout::kept)).
    pub kept: usize,
    /// Whether a moving average of the parameters is kept.
    pub averages: bool,
}

impl StateShape {
    /// Elements of each section, in the order of [`Section::ALL`].
    #[must_use]
    pub fn lengths(&self) -> [usize; Section::COUNT] {
        let with = |is_there: bool| if is_there { self.parameters } else { 0 };
        let first = with(self.moments > 0) + self.kept;
        [self.parameters, self.stats, first, with(self.moments > 1), with(self.averages)]
    }
}

impl State {
    /// A state of zeros, with no update done: fresh memory to load or copy into.
    #[must_use]
    pub fn zeros(shape: StateShape) -> Self {
        Self { applied: Step(0), sections: shape.lengths().map(Flat::zeros) }
    }

    /// A state in this memory, with no update done.
    pub(crate) fn of(sections: [Flat; Section::COUNT]) -> Self {
        Self { applied: Step(0), sections }
    }

    /// One flat buffer; empty where the optimizer keeps none.
    #[must_use]
    pub fn section(&self, section: Section) -> &[f32] {
        &self.sections[section as usize]
    }

    /// Lends elements of a section ([`Flat::lend`]).
    pub(crate) fn lend(&mut self, section: Section, elements: Range<usize>) -> Option<FloatsOnLoan> {
        self.sections[section as usize].lend(elements)
    }

    /// Gives up what lies in a section.
    pub(crate) fn empty(&mut self, section: Section) {
        self.sections[section as usize] = Flat::zeros(0);
    }

    /// One flat buffer, to write.
    pub fn section_mut(&mut self, section: Section) -> &mut [f32] {
        &mut self.sections[section as usize]
    }

    /// The parameters that a finished model has: their moving average, where one is kept.
    #[must_use]
    pub fn averaged(&self) -> &[f32] {
        match self.section(Section::Average) {
            [] => self.section(Section::Parameters),
            average => average,
        }
    }

    /// Begins the moving average, if one is kept: with the parameters.
    pub fn begin_average(&mut self) {
        let [parameters, .., average] = self.sections_mut();
        if !average.is_empty() {
            average.copy_from_slice(parameters);
        }
    }

    /// All flat buffers at once, to write, in the order of [`Section::ALL`].
    pub fn sections_mut(&mut self) -> [&mut [f32]; Section::COUNT] {
        self.sections.each_mut().map(|flat| &mut **flat)
    }

    /// *Panics* if a section of the other has another length.
    pub(crate) fn assert_alike(&self, other: &Self) {
        for section in Section::ALL {
            let (ours, theirs) = (self.section(section).len(), other.section(section).len());
            assert_eq!(ours, theirs, "section {} of another model", section.name());
        }
    }

    /// Bytes of all sections.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sections.iter().map(|flat| flat.len() as u64 * 4).sum()
    }

    /// blake3 of the parameters, then the running statistics, then the moving average if one is kept, little-endian, in layout
    /// order: the digest for people.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = ModelDigest::default();
        Section::ALL.into_iter().for_each(|section| digest.add(section, self.section(section)));
        digest.finish()
    }

    /// Digest of what every rank has of the state where ranks hold shards: all but the moments.
    #[must_use]
    pub fn common_digest(&self) -> [u8; 32] {
        let mut digest = StateDigest::of(self.applied);
        for section in [Section::Parameters, Section::Stats, Section::Average] {
            digest.add(section, self.section(section));
        }
        digest.finish()
    }

    /// blake3 of all of the state: the update count, then the length and content of every section; of the moving average only if one
    /// is kept.
    #[must_use]
    pub fn state_digest(&self) -> [u8; 32] {
        let mut digest = StateDigest::of(self.applied);
        Section::ALL.into_iter().for_each(|section| digest.add(section, self.section(section)));
        digest.finish()
    }
}

/// The digest for people of a state whose sections come one after the other: [`State::digest`].
#[derive(Clone, Debug, Default)]
pub struct ModelDigest(blake3::Hasher);

impl ModelDigest {
    /// Adds a whole section: all are added, in the order of [`Section::ALL`].
    pub fn add(&mut self, section: Section, values: &[f32]) {
        if matches!(section, Section::Parameters | Section::Stats | Section::Average) {
            update_bytes(&mut self.0, values);
        }
    }

    /// The digest.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// The digest of all of a state whose sections come one after the other: [`State::state_digest`].
#[derive(Clone, Debug)]
pub struct StateDigest(blake3::Hasher);

impl StateDigest {
    /// Of a state of so many updates, without a section yet.
    #[must_use]
    pub fn of(applied: Step) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&applied.0.to_le_bytes());
        Self(hasher)
    }

    /// Adds a whole section: all are added, in the order of [`Section::ALL`], those of nothing too.
    pub fn add(&mut self, section: Section, values: &[f32]) {
        if section == Section::Average && values.is_empty() {
            return;
        }
        self.0.update(&(values.len() as u64).to_le_bytes());
        update_bytes(&mut self.0, values);
    }

    /// The digest.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// Feeds values as little-endian bytes, through a block on the stack: no copy of the whole, no unsafe cast.
pub(crate) fn update_bytes(hasher: &mut blake3::Hasher, values: &[f32]) {
    let mut bytes = [0u8; 16 * 1024];
    for block in values.chunks(bytes.len() / 4) {
        for (to, from) in bytes.chunks_exact_mut(4).zip(block) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        hasher.update(&bytes[..block.len() * 4]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let mut state =
            State::zeros(StateShape { parameters: 5000, stats: 3, moments: 2, kept: 0, averages: true });
        for (i, section) in state.sections_mut().into_iter().enumerate() {
            section.iter_mut().enumerate().for_each(|(j, x)| *x = (i * 7 + j) as f32 * 0.25);
        }
        state
    }

    #[test]
    fn the_digest_is_blake3_of_the_little_endian_bytes() {
        let state = state();
        let bytes: Vec<u8> = [Section::Parameters, Section::Stats, Section::Average]
            .into_iter()
            .flat_map(|s| state.section(s).iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
            .collect();
        assert_eq!(state.digest(), *blake3::hash(&bytes).as_bytes());
    }

    #[test]
    fn the_state_digest_sees_every_section_and_the_count_and_the_digest_what_a_model_is() {
        let (base, full) = (state().digest(), state().state_digest());
        for section in Section::ALL {
            let mut other = state();
            let last = other.section(section).len() - 1;
            other.section_mut(section)[last] += 1.0;
            assert_ne!(other.state_digest(), full, "{section:?}");
            let for_people = matches!(section, Section::Parameters | Section::Stats | Section::Average);
            assert_eq!(other.digest() != base, for_people, "{section:?}");
        }
        let mut later = state();
        later.applied = Step(1);
        assert_ne!(later.state_digest(), full);
    }

    #[test]
    fn an_optimizer_with_one_buffer_leaves_the_second_section_empty() {
        let state =
            State::zeros(StateShape { parameters: 10, stats: 0, moments: 1, kept: 0, averages: false });
        assert_eq!(Section::ALL.map(|s| state.section(s).len()), [10, 0, 10, 0, 0]);
        assert_eq!(state.bytes(), 80);
    }
}
