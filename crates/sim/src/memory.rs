//! The memory that the ranks of a host share: slots for gradients, a state, and the words by which the ranks meet.
//!
//! It outlives the ranks: what one wrote stays there when it is killed, in the middle of a block or of an update. It goes with the
//! host's power. This file does not know who writes what, nor when.

use crate::job::Engine;
use dtrain_collective::{Arena, Geometry, HostArena};
use dtrain_engine::{
    PARTS, Section, SharedAreas, SharedParts, State, StateShape, journal_word, shared_shape_in_blocks,
    stats_area,
};
use dtrain_types::{Generation, SHARED_AREAS, SharedShape, Step, Trailer};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Elements of a block of the update: few, so that the tiny model has several for each rank.
const BLOCK: usize = 4;

/// All that the ranks of a host share.
#[derive(Debug)]
pub struct HostMemory {
    /// The gradient slots of each local rank.
    pub slots: Vec<HostArena>,
    /// The state, where the ranks share one.
    pub state: AreaMemory,
    /// Where they wait for one another.
    pub meeting: Meeting,
}

impl HostMemory {
    /// Memory of zeros for so many ranks.
    #[must_use]
    pub fn new(engine: &Engine, geometry: Geometry, ranks: usize) -> Self {
        Self {
            slots: (0..ranks).map(|_| HostArena::new(geometry)).collect(),
            state: AreaMemory::new(engine.state_shape(), ranks),
            meeting: Meeting::default(),
        }
    }

    /// A part of one rank's slot, and of another's or the same one's, copied.
    pub fn copy(&mut self, from: (usize, usize), to: (usize, usize), part: Range<usize>) {
        let floats = self.slots[from.0].slot(from.1)[part.clone()].to_vec();
        self.slots[to.0].lease(to.1)[part].copy_from_slice(&floats);
    }
}

/// The barriers of a generation on a host: how many of them each local rank has come to.
#[derive(Debug, Default)]
pub struct Meeting {
    /// Whose barriers these are.
    pub generation: Generation,
    arrived: Vec<u64>,
    /// What each local rank says of its roots.
    pub trailers: Vec<Vec<Trailer>>,
    /// A rank of the host has broken the generation off.
    pub broken: bool,
}

impl Meeting {
    /// A rank comes to a generation of so many ranks here, and tells whether it is not over.
    pub fn enter(&mut self, generation: Generation, ranks: usize) -> bool {
        if generation > self.generation {
            let (arrived, trailers) = (vec![0; ranks], vec![Vec::new(); ranks]);
            *self = Self { generation, arrived, trailers, broken: false };
        }
        generation == self.generation
    }

    /// A rank comes to its next barrier; gives its number.
    pub fn arrive(&mut self, local: usize) -> u64 {
        self.arrived[local] += 1;
        self.arrived[local]
    }

    /// Whether all ranks have come to this barrier.
    #[must_use]
    pub fn all_came_to(&self, round: u64) -> bool {
        self.arrived.iter().all(|arrived| *arrived >= round)
    }
}

/// A shared state as plain memory.
#[derive(Debug)]
pub struct AreaMemory {
    shape: SharedShape,
    floats: [Vec<f32>; SHARED_AREAS],
    words: Vec<AtomicU64>,
    lengths: StateShape,
    ranks: usize,
}

impl AreaMemory {
    fn new(state: StateShape, ranks: usize) -> Self {
        let shape = shared_shape_in_blocks(state, ranks, BLOCK);
        let words = (0..shape.words).map(|_| AtomicU64::new(0)).collect();
        Self { shape, floats: shape.floats.map(|len| vec![0.0; len]), words, lengths: state, ranks }
    }

    /// A copy of the state after so many updates, whatever lies there.
    #[must_use]
    pub fn state(&self, applied: Step) -> State {
        let mut state = State::zeros(self.lengths);
        let areas = [0, stats_area(applied), 1, 2, 3];
        for (section, area) in Section::ALL.into_iter().zip(areas) {
            state.section_mut(section).copy_from_slice(&self.floats[area]);
        }
        state.applied = applied;
        state
    }

    /// Forgets which blocks lie in the journals: what a real memory never does.
    pub fn forget_journals(&mut self) {
        for share in 0..self.ranks {
            self.words[journal_word(share)].store(0, Ordering::SeqCst);
        }
    }
}

impl SharedAreas for AreaMemory {
    fn shape(&self) -> SharedShape {
        self.shape
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn read(&self, area: usize) -> &[f32] {
        &self.floats[area]
    }

    fn write(&mut self, area: usize, part: Range<usize>) -> &mut [f32] {
        &mut self.floats[area][part]
    }

    fn parts(&mut self, own: [Range<usize>; PARTS], journal: Range<usize>) -> SharedParts<'_> {
        let Self { floats: [parts @ .., _, _, journals], words, .. } = self;
        let mut own = own.into_iter();
        let own = parts.each_mut().map(|area| &mut area[own.next().expect("as many")]);
        SharedParts { words, own, journal: &mut journals[journal] }
    }

    fn read_write(&mut self, from: usize, to: usize) -> (&[f32], &mut [f32]) {
        let [from, to] = self.floats.get_disjoint_mut([from, to]).expect("two areas");
        (from, to)
    }
}
