//! Memory for the state that the ranks of a host have in common: areas of floats in the arena, and words that tell what is in them.
//!
//! It outlives generations and ranks: whoever comes later maps the same memory, as those left it that are gone. Who reads or writes a
//! part of it, and when, is the rule of those who hold it ([`SharedFloats`]); between their turns lies a barrier of the collectives.
//! It does not know what is in an area, nor what a word means.

use super::Mapping;
use dtrain_types::{SHARED_AREAS, SharedFloats, SharedShape, SharedState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The memory for a state in a mapped arena.
#[derive(Debug)]
pub struct ShmState(Arc<Mapping>);

impl ShmState {
    /// The memory for a state in this arena, if there is any.
    #[must_use]
    pub fn of(mapping: &Arc<Mapping>) -> Option<Self> {
        (mapping.state_shape() != SharedShape::default()).then(|| Self(Arc::clone(mapping)))
    }
}

impl SharedState for ShmState {
    fn shape(&self) -> SharedShape {
        self.0.state_shape()
    }

    fn floats(&self, area: usize) -> Box<dyn SharedFloats> {
        assert!(area < SHARED_AREAS, "area {area} of {SHARED_AREAS}");
        Box::new(Floats { mapping: Arc::clone(&self.0), area })
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.state_words()
    }
}

/// One area.
#[derive(Debug)]
struct Floats {
    mapping: Arc<Mapping>,
    area: usize,
}

impl Floats {
    fn start(&self) -> *mut f32 {
        self.mapping.base().wrapping_add(self.mapping.state_area(self.area))
    }
}

impl SharedFloats for Floats {
    fn len(&self) -> usize {
        self.mapping.state_shape().floats[self.area]
    }

    fn read(&self) -> &[f32] {
        // SAFETY: the area lies in the mapping, aligned, and any bytes are floats. By the rule of `SharedFloats` nobody, in this
        // process or another, writes what is read.
        unsafe { std::slice::from_raw_parts(self.start(), self.len()) }
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        assert!(part.start <= part.end && part.end <= self.len(), "{part:?} of {} floats", self.len());
        // SAFETY: as `read`; and by the rule nobody else writes or reads this part meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start().wrapping_add(part.start), part.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ArenaFile;
    use super::*;
    use dtrain_collective::Geometry;
    use dtrain_types::WorldSize;
    use std::sync::atomic::Ordering;

    const GEOMETRY: Geometry = Geometry { len: 8, root_slots: 1, scratch_slots: 0 };

    #[test]
    fn whoever_maps_the_arena_sees_what_another_wrote_and_areas_are_apart() {
        let shape = SharedShape { floats: [1_000, 3, 0, 5, 17, 1_000, 1], words: 5 };
        let file = ArenaFile::with_state(WorldSize(2), GEOMETRY, shape).expect("an arena");
        let copy = ArenaFile::from_fd(file.try_clone().expect("a descriptor").into_fd()).expect("the same");
        let [writer, reader] =
            [file, copy].map(|file| ShmState::of(&file.map().expect("a mapping")).expect("a state"));
        assert_eq!(reader.shape(), shape);
        for area in 0..SHARED_AREAS {
            writer.floats(area).part(0..shape.floats[area]).fill(area as f32 + 1.0);
        }
        writer.words().iter().zip(1..).for_each(|(word, value)| word.store(value, Ordering::SeqCst));
        for area in 0..SHARED_AREAS {
            let floats = reader.floats(area);
            assert_eq!(floats.read().len(), shape.floats[area]);
            assert!(floats.read().iter().all(|x| *x == area as f32 + 1.0));
        }
        let words: Vec<u64> = reader.words().iter().map(|word| word.load(Ordering::SeqCst)).collect();
        assert_eq!(words, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn an_arena_that_was_made_without_a_state_has_none() {
        let file = ArenaFile::create(WorldSize(2), GEOMETRY).expect("an arena");
        assert!(ShmState::of(&file.map().expect("a mapping")).is_none());
    }

    #[test]
    #[should_panic(expected = "0..4 of 3 floats")]
    fn a_part_beyond_the_area_is_refused() {
        let shape = SharedShape { floats: [3, 0, 0, 0, 0, 0, 0], words: 0 };
        let file = ArenaFile::with_state(WorldSize(1), GEOMETRY, shape).expect("an arena");
        let state = ShmState::of(&file.map().expect("a mapping")).expect("a state");
        state.floats(0).part(0..4).fill(0.0);
    }
}
