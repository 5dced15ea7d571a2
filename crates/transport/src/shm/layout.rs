//! Where things lie in an arena, as offsets; the same arithmetic in every process that maps it.
//!
//! ```text
//! 0                 header: magic, version, world, geometry, abort word, shape of the state; at 128 the bell of aborts; at 256
//!                   the words of shared work
//! 4096              one control block per rank, 256 bytes each
//! ...               trailers of even collectives: for each rank 64 bytes for each root slot, up to a pair of cache lines; then those
//!                   of odd ones
//! page boundary     slots: rank 0 slot 0, rank 0 slot 1, ..., rank 1 slot 0, ...
//! page boundary     the state, if the ranks have one in common: its words, then its areas
//! ```

use super::ShmError;
use dtrain_collective::Geometry;
use dtrain_types::{SHARED_AREAS, SharedShape, WorldSize};

/// "dtrainar", read as a little-endian number.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"dtrainar");
/// Rises with every change of this layout or of the meaning of a control block.
pub(super) const VERSION: u64 = 8;
/// Words of the header, in order: magic, version, world, len, root slots, scratch slots, aborted generation, areas and
/// words of the state.
pub(super) const HEADER_WORDS: usize = 8 + SHARED_AREAS;
/// The word that holds the greatest aborted generation.
pub(super) const ABORT_WORD: usize = 6;
/// Where the futex word of aborts is, in bytes: the second cache line pair.
pub(super) const ABORT_BELL: usize = 128;
/// Where the words of shared work are, in bytes, and how many: a pair of cache lines for what is claimed, one for what is done.
pub(super) const WORK: usize = 256;
pub(super) const WORK_BYTES: usize = 256;
/// Bytes of a control block: two pairs of cache lines, because processors fetch lines in pairs.
pub(super) const CONTROL: usize = 256;
/// What processors fetch at once: ranks that write to one pair of lines take it from one another.
const PAIR: usize = 128;
/// Bytes of a trailer: one cache line.
pub(super) const TRAILER: usize = 64;
/// Trailers and announcements are laid out by turns: whoever is done with a collective may announce the next one while a peer
/// still reads those of the last. Two are enough, because nobody passes the first barrier of a collective before all have
/// left the one before.
pub(super) const TURNS: usize = 2;

const PAGE: usize = 4096;
/// Slots of equal length would all start in the same cache set; this moves each a few lines on.
const SKEW: usize = 256;

/// Offsets into an arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub world: usize,
    pub geometry: Geometry,
    /// The state that the ranks have in common; of nothing if they have none.
    pub state: SharedShape,
    trailers: usize,
    slots: usize,
    stride: usize,
    words: usize,
    areas: [usize; SHARED_AREAS],
    pub bytes: usize,
}

impl Layout {
    /// *Errors*: [`ShmError::TooLarge`] when an offset overflows, which a hostile header can bring about.
    pub fn new(world: WorldSize, geometry: Geometry, state: SharedShape) -> Result<Self, ShmError> {
        let plan = || -> Option<Self> {
            let ranks = world.0 as usize;
            let slots_of_a_rank = geometry.root_slots.checked_add(geometry.scratch_slots)?;
            let trailers = PAGE.checked_add(CONTROL.checked_mul(ranks)?)?;
            let of_a_rank = TRAILER.checked_mul(geometry.root_slots)?.checked_next_multiple_of(PAIR)?;
            let trailer_bytes = of_a_rank.checked_mul(TURNS * ranks)?;
            let slots = trailers.checked_add(trailer_bytes)?.checked_next_multiple_of(PAGE)?;
            let stride = geometry.len.checked_mul(4)?.checked_next_multiple_of(PAGE)?.checked_add(SKEW)?;
            let bytes = slots.checked_add(stride.checked_mul(slots_of_a_rank.checked_mul(ranks)?)?)?;
            let mut bytes = bytes.checked_next_multiple_of(PAGE)?;
            let words = bytes;
            bytes = bytes.checked_add(state.words.checked_mul(8)?)?.checked_next_multiple_of(PAGE)?;
            let mut areas = [0; SHARED_AREAS];
            for (start, len) in areas.iter_mut().zip(state.floats) {
                *start = bytes;
                let stride = len.checked_mul(4)?.checked_next_multiple_of(PAGE)?.checked_add(SKEW)?;
                bytes = if len == 0 { bytes } else { bytes.checked_add(stride)? };
            }
            let bytes = bytes.checked_next_multiple_of(PAGE)?;
            // A pointer offset may not pass isize::MAX.
            isize::try_from(bytes).ok()?;
            Some(Self { world: ranks, geometry, state, trailers, slots, stride, words, areas, bytes })
        };
        let usable = world.0 > 0 && geometry.root_slots > 0;
        plan().filter(|_| usable).ok_or(ShmError::TooLarge { world, geometry })
    }

    /// Where the words of the state start.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Where an area of the state starts.
    pub fn area(&self, area: usize) -> usize {
        self.areas[area]
    }

    pub fn control(&self, rank: usize) -> usize {
        assert!(rank < self.world, "rank {rank} of {}", self.world);
        PAGE + rank * CONTROL
    }

    pub fn trailer(&self, turn: usize, rank: usize, root: usize) -> usize {
        assert!(rank < self.world && root < self.geometry.root_slots, "root {root} of rank {rank}");
        let area = turn % TURNS * self.world + rank;
        self.trailers + area * (self.geometry.root_slots * TRAILER).next_multiple_of(PAIR) + root * TRAILER
    }

    pub fn slot(&self, rank: usize, slot: usize) -> usize {
        assert!(rank < self.world && slot < self.geometry.slots(), "slot {slot} of rank {rank}");
        self.slots + (rank * self.geometry.slots() + slot) * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_slots_start_on_cache_lines() {
        let geometry = Geometry { len: 1_001, root_slots: 3, scratch_slots: 2 };
        let state = SharedShape { floats: [1_000, 3, 0, 5, 1_001, 0, 1_024], words: 9 };
        let layout = Layout::new(WorldSize(5), geometry, state).expect("small");
        let mut spans = vec![(0, HEADER_WORDS * 8), (ABORT_BELL, 4), (WORK, WORK_BYTES)];
        spans.push((layout.words(), state.words * 8));
        spans.extend((0..SHARED_AREAS).map(|area| (layout.area(area), state.floats[area] * 4)));
        for rank in 0..5 {
            spans.push((layout.control(rank), CONTROL));
            let trailer = |turn, root| (layout.trailer(turn, rank, root), TRAILER);
            spans.extend((0..TURNS).flat_map(|turn| (0..3).map(move |root| trailer(turn, root))));
            spans.extend((0..5).map(|slot| (layout.slot(rank, slot), 1_001 * 4)));
        }
        spans.sort_unstable();
        // Two ranks' trailers never share what a processor fetches at once.
        assert!((0..5).all(|rank| layout.trailer(0, rank, 0).is_multiple_of(PAIR)));
        assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 && pair[1].0 % 64 == 0));
        let last = spans.last().expect("not empty");
        assert!(last.0 + last.1 <= layout.bytes);
    }

    #[test]
    fn a_geometry_beyond_the_address_space_is_an_error() {
        for (world, len, root_slots) in
            [(1, usize::MAX, 1), (u32::MAX, 1 << 50, 1), (2, 8, usize::MAX), (0, 8, 1), (1, 8, 0)]
        {
            let geometry = Geometry { len, root_slots, scratch_slots: 1 };
            let refused = Layout::new(WorldSize(world), geometry, SharedShape::default());
            assert_eq!(refused, Err(ShmError::TooLarge { world: WorldSize(world), geometry }));
        }
        let geometry = Geometry { len: 8, root_slots: 1, scratch_slots: 0 };
        let areas = [
            [usize::MAX, 0, 0, 0, 0, 0, 0],
            [1 << 60, 1 << 60, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, usize::MAX / 4],
        ];
        let shapes = areas.map(|floats| SharedShape { floats, words: 1 });
        for state in
            shapes.into_iter().chain([SharedShape { words: usize::MAX / 8, ..SharedShape::default() }])
        {
            let refused = Layout::new(WorldSize(1), geometry, state);
            assert_eq!(refused, Err(ShmError::TooLarge { world: WorldSize(1), geometry }));
        }
    }
}
