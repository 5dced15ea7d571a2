//! The digest of a state of which nobody has all: groups of its bytes, each of which is hashed where it lies, and the tree over them.
//!
//! It is [`State::state_digest`](crate::State::state_digest) to the bit. BLAKE3 hashes chunks, and pairs of what it has hashed, up to one root: so a
//! group of a power of two of chunks has a value that follows from its bytes and its place alone. Source: O'Connor, Aumasson, Neves and
//! Wilcox-O'Hearn, BLAKE3, 2020, section 2.1. This file does not know who has which elements.

use crate::layout::Section;
use crate::state::{StateShape, update_bytes};
use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use dtrain_types::Step;
use std::ops::Range;

/// Bytes of a group: 64 chunks.
const GROUP: usize = 64 * 1024;

const FLOAT: usize = size_of::<f32>();
const WORD: usize = size_of::<u64>();

/// What a group of the bytes of a state comes to.
pub type GroupValue = [u8; 32];

/// How the bytes of a state of some shape are cut into groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTree {
    /// What follows what.
    stretches: Vec<Stretch>,
    /// All bytes.
    len: usize,
}

/// Bytes that follow one another in what is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    bytes: Range<usize>,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// How many updates were made, or how long a section is.
    Word(u64),
    /// All of a section.
    Section(Section),
}

impl StateTree {
    /// Of a state of this shape after so many updates.
    #[must_use]
    pub fn new(applied: Step, shape: StateShape) -> Self {
        let mut tree = Self { stretches: Vec::new(), len: 0 };
        tree.push(What::Word(applied.0), WORD);
        for (section, len) in Section::ALL.into_iter().zip(shape.lengths()) {
            if section != Section::Average || len > 0 {
                tree.push(What::Word(len as u64), WORD);
                tree.push(What::Section(section), len * FLOAT);
            }
        }
        tree
    }

    /// Of what the digest for people covers ([`State::digest`](crate::State::digest)) of a state of this shape.
    #[must_use]
    pub fn of_model(shape: StateShape) -> Self {
        let mut tree = Self { stretches: Vec::new(), len: 0 };
        for (section, len) in Section::ALL.into_iter().zip(shape.lengths()) {
            if !section.is_of_moments() {
                tree.push(What::Section(section), len * FLOAT);
            }
        }
        tree
    }

    fn push(&mut self, what: What, bytes: usize) {
        self.stretches.push(Stretch { bytes: self.len..self.len + bytes, what });
        self.len += bytes;
    }

    /// How many groups there are; not 0.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.len.div_ceil(GROUP)
    }

    /// Bytes that lie in a group, each with how far behind the beginning of its stretch they do.
    fn parts(&self, group: usize) -> impl Iterator<Item = (What, Range<usize>)> {
        let of = group * GROUP..((group + 1) * GROUP).min(self.len);
        let meets = move |stretch: &Stretch| {
            let bytes = stretch.bytes.start.max(of.start)..stretch.bytes.end.min(of.end);
            let start = stretch.bytes.start;
            (bytes.start < bytes.end).then(|| (stretch.what, bytes.start - start..bytes.end - start))
        };
        self.stretches.iter().filter_map(meets)
    }

    /// The elements that lie in a group, section by section; none of them is empty.
    pub fn elements(&self, group: usize) -> impl Iterator<Item = (Section, Range<usize>)> {
        let elements = |(what, bytes): (What, Range<usize>)| match what {
            // All begins on a multiple of 4, so no element lies in two groups.
            What::Section(section) => Some((section, bytes.start / FLOAT..bytes.end / FLOAT)),
            What::Word(_) => None,
        };
        self.parts(group).filter_map(elements)
    }

    /// What a group comes to, whose elements `read` writes into memory of their number.
    ///
    /// *Errors*: those of `read`.
    pub fn value<E>(
        &self,
        group: usize,
        mut read: impl FnMut(Section, Range<usize>, &mut [f32]) -> Result<(), E>,
    ) -> Result<GroupValue, E> {
        let (mut hasher, mut room) = (Hasher::new(), Vec::with_capacity(GROUP / FLOAT));
        // A group that is all of it is the root.
        let is_root = self.groups() == 1;
        if !is_root {
            hasher.set_input_offset((group * GROUP) as u64);
        }
        for (what, bytes) in self.parts(group) {
            match what {
                What::Word(word) => {
                    hasher.update(&word.to_le_bytes()[bytes]);
                }
                What::Section(section) => {
                    room.resize(bytes.len() / FLOAT, 0.0);
                    read(section, bytes.start / FLOAT..bytes.end / FLOAT, &mut room)?;
                    update_bytes(&mut hasher, &room);
                }
            }
        }
        Ok(if is_root { *hasher.finalize().as_bytes() } else { hasher.finalize_non_root() })
    }

    /// The digest of a state whose groups come to these. *Panics* if there is another number of them.
    #[must_use]
    pub fn digest(&self, values: &[GroupValue]) -> [u8; 32] {
        assert_eq!(values.len(), self.groups(), "a value for each group");
        match values {
            [whole] => *whole,
            _ => {
                let [left, right] =
                    self.halves(values, self.len).map(|(values, len)| self.merge(values, len));
                *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
            }
        }
    }

    /// What groups of so many bytes come to, which are a part of the tree.
    fn merge(&self, values: &[GroupValue], len: usize) -> GroupValue {
        match values {
            [one] => *one,
            _ => {
                let [left, right] = self.halves(values, len).map(|(values, len)| self.merge(values, len));
                merge_subtrees_non_root(&left, &right, Mode::Hash)
            }
        }
    }

    fn halves<'a>(&self, values: &'a [GroupValue], len: usize) -> [(&'a [GroupValue], usize); 2] {
        let left = left_subtree_len(len as u64) as usize;
        let (first, second) = values.split_at(left / GROUP);
        [(first, left), (second, len - left)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    fn state(shape: StateShape, seed: u32) -> State {
        let mut state = State::zeros(shape);
        state.applied = Step(u64::from(seed) + 7);
        for (number, section) in (1u32..).zip(Section::ALL) {
            for (at, value) in (0u32..).zip(state.section_mut(section)) {
                *value =
                    f32::from_bits(seed.wrapping_mul(0x9E37_79B9) ^ at.wrapping_mul(number) & 0x7F7F_FFFF);
            }
        }
        state
    }

    fn digest_by_groups(state: &State, shape: StateShape) -> [u8; 32] {
        let tree = StateTree::new(state.applied, shape);
        let mut seen = [0; Section::COUNT];
        let value = |group| {
            for (section, elements) in tree.elements(group) {
                assert_eq!(elements.start, seen[section as usize], "every element is in one group");
                seen[section as usize] = elements.end;
            }
            let read = |section, elements: Range<usize>, to: &mut [f32]| {
                to.copy_from_slice(&state.section(section)[elements]);
                Ok::<_, std::convert::Infallible>(())
            };
            tree.value(group, read).expect("it is in memory")
        };
        let values: Vec<_> = (0..tree.groups()).map(value).collect();
        assert_eq!(seen, shape.lengths());
        tree.digest(&values)
    }

    #[test]
    fn groups_come_to_the_digest_of_the_whole_whatever_its_length() {
        let around = |groups: usize| (0..12).map(move |off| groups * GROUP / FLOAT - 9 + off);
        let lengths = (0..6).chain(around(1)).chain(around(2)).chain(around(4)).chain([100_003, 250_000]);
        for (parameters, seed) in lengths.zip(0..) {
            for (moments, averages) in [(0, false), (1, true), (2, false), (2, true)] {
                let stats = seed as usize % 5;
                let shape = StateShape { parameters, stats, moments, kept: 0, averages };
                let state = state(shape, seed);
                assert_eq!(digest_by_groups(&state, shape), state.state_digest(), "{shape:?}");
            }
        }
    }
}
