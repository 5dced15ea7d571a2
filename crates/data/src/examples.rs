//! Examples in a file of ids: where each begins and what of it is learnt, by the mask beside the file, and how they lie in samples.
//!
//! An example has a sample of its own, or several share one (packing); its end is cut where it is longer. Behind the last one of a sample there is
//! nothing to learn, and no token before it sees what stands there: models of tokens see what was before alone. It does not know tokenizers.

use crate::ids::Ids;
use crate::mmap::Mapping;
use crate::split::held_out_count;
use crate::{DataError, Dataset, InputSpec, SampleSlot, SampleSpec, TargetSpec};
use dtrain_types::Key;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bit of a token that a model learns to say.
pub const LEARNT: u8 = 1;
/// The bit of a token that an example begins with.
pub const BEGINS: u8 = 2;
const NEEDS: &str = "a mask has a byte for each token id beside it";

/// The mask of a file of ids: a byte for each.
#[must_use]
pub fn mask_of(ids: &Path) -> PathBuf {
    ids.with_extension("mask")
}

/// How the examples that are trained on lie in samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExampleCounts {
    /// How many there are.
    pub examples: u64,
    /// In how many samples.
    pub samples: u64,
    /// Places in all samples.
    pub places: u64,
    /// Those that a token of an example takes.
    pub taken: u64,
    /// Whether several may share a sample.
    pub is_packed: bool,
    /// Examples that lost their end.
    pub cut: u64,
    /// Those that have nothing to learn where a sample ends, and are nowhere.
    pub left_out: u64,
}

/// A mask that is there.
pub(crate) struct Mask {
    file: PathBuf,
    bytes: Mapping,
}

impl Mask {
    /// That of a file of ids; none where there is none.
    ///
    /// *Errors*: it cannot be read, or is the mask of something else.
    pub fn beside(ids: &Ids) -> Result<Option<Self>, DataError> {
        let file = mask_of(ids.file());
        let system = |source| DataError::io(&file, NEEDS, source);
        match fs::metadata(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            about => about.map_err(system)?,
        };
        let bytes = File::open(&file).and_then(|opened| Mapping::of(&opened)).map_err(system)?;
        let (has, wants) = (bytes.len(), ids.len());
        let problem = if has != wants {
            Some(format!("it has {has} bytes, and {} {wants} ids", ids.file().display()))
        } else if bytes.first().is_some_and(|first| first & BEGINS == 0) {
            Some("no example begins with its first byte".to_owned())
        } else {
            let other = bytes.iter().position(|byte| byte & !(LEARNT | BEGINS) != 0);
            other.map(|place| format!("byte {place} is {}, expected 0 to 3", bytes[place]))
        };
        match problem {
            Some(problem) => Err(DataError::NoMask { file, problem }),
            None => Ok(Some(Self { file, bytes })),
        }
    }

    fn is_learnt(&self, place: usize) -> bool {
        self.bytes[place] & LEARNT != 0
    }

    /// Where the examples lie, each cut behind its first `context + 1` tokens, and which of them have something to learn there.
    fn examples(&self, context: usize) -> impl Iterator<Item = Found> {
        let begins = |from: usize| {
            let next = self.bytes[from..].iter().position(|byte| byte & BEGINS != 0);
            next.map_or(self.bytes.len(), |place| from + place)
        };
        let mut start = 0;
        std::iter::from_fn(move || {
            if start >= self.bytes.len() {
                return None;
            }
            let end = begins(start + 1);
            let kept = start..end.min(start + context + 1);
            start = end;
            let teaches = kept.clone().skip(1).any(|place| self.is_learnt(place));
            Some(Found { is_cut: kept.end < end, kept, teaches })
        })
    }
}

/// An example in a file.
struct Found {
    kept: Range<usize>,
    is_cut: bool,
    teaches: bool,
}

/// How examples become samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuts {
    /// Places of a sample.
    pub context: usize,
    /// How many ids there are.
    pub vocabulary: u32,
    /// Whether several examples share a sample.
    pub is_packed: bool,
}

/// The samples of one part.
pub(crate) struct Examples {
    ids: Arc<Ids>,
    mask: Arc<Mask>,
    vocabulary: u32,
    context: usize,
    /// Where each example lies in the file, sample by sample, and with which of them each sample begins.
    examples: Vec<Range<usize>>,
    firsts: Vec<usize>,
}

/// A training part, one that is held out if one is, and how examples lie in the former.
pub(crate) struct Parts {
    pub train: Examples,
    pub val: Option<Examples>,
    pub counts: ExampleCounts,
}

impl Examples {
    /// The parts of a file; a share of its examples at the end may be held out.
    ///
    /// *Errors*: a context of 0, a share that is none, a part without an example to learn from.
    pub fn split(ids: &Arc<Ids>, mask: Mask, cuts: Cuts, val_split: f64) -> Result<Parts, DataError> {
        let Cuts { context, vocabulary, is_packed } = cuts;
        if context == 0 {
            return Err(DataError::Option { option: "context", got: "0".into(), expected: "at least 1" });
        }
        let mut all: Vec<Range<usize>> =
            mask.examples(context).filter(|found| found.teaches).map(|found| found.kept).collect();
        if all.is_empty() {
            return Err(DataError::NothingLearnt { file: mask.file, tokens: context + 1 });
        }
        let held_out = held_out_count(val_split, all.len() as u64)?;
        let held_out = all.split_off(all.len() - held_out as usize);
        let end = held_out.first().map_or(ids.len(), |first| first.start);
        let mut counts = ExampleCounts { is_packed, ..ExampleCounts::default() };
        for found in mask.examples(context).take_while(|found| found.kept.start < end) {
            counts.cut += u64::from(found.teaches && found.is_cut);
            counts.left_out += u64::from(!found.teaches);
        }
        let mask = Arc::new(mask);
        let part = |all: Vec<Range<usize>>| {
            let (ids, mask) = (Arc::clone(ids), Arc::clone(&mask));
            let samples =
                if is_packed { packed(&all, context) } else { (0..all.len()).map(|at| vec![at]).collect() };
            let firsts =
                samples.iter().scan(0, |next, sample| Some(std::mem::replace(next, *next + sample.len())));
            let firsts = firsts.collect();
            let examples = samples.iter().flatten().map(|at| all[*at].clone()).collect();
            Self { ids, mask, vocabulary, context, examples, firsts }
        };
        let val = (!held_out.is_empty()).then(|| part(held_out));
        let train = part(all);
        let counts = ExampleCounts {
            examples: train.examples.len() as u64,
            samples: train.len(),
            places: train.len() * context as u64,
            taken: train.examples.iter().map(|places| places.len() as u64 - 1).sum(),
            ..counts
        };
        Ok(Parts { train, val, counts })
    }

    /// Where the examples of a sample lie in the file.
    fn of(&self, index: u64) -> &[Range<usize>] {
        let index = index as usize;
        let end = self.firsts.get(index + 1).copied().unwrap_or(self.examples.len());
        &self.examples[self.firsts[index]..end]
    }

    /// *Errors*: an id of this sample is beyond the vocabulary.
    pub fn check(&self, index: u64) -> Result<(), DataError> {
        for places in self.of(index) {
            self.ids.check(places.clone(), self.vocabulary)?;
        }
        Ok(())
    }
}

/// Which examples share a sample of `context` places: each, the longest first, comes where it leaves the least room. Samples and what is in them are in the order of
/// the file.
fn packed(examples: &[Range<usize>], context: usize) -> Vec<Vec<usize>> {
    // The last token of each is only predicted.
    let length = |at: usize| examples[at].len() - 1;
    let mut longest_first: Vec<usize> = (0..examples.len()).collect();
    longest_first.sort_by_key(|at| std::cmp::Reverse(length(*at)));
    let mut samples: Vec<Vec<usize>> = Vec::new();
    let mut by_room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for at in longest_first {
        let least = by_room.range(length(at)..).next().map(|(room, _)| *room);
        let (room, sample) = match least {
            Some(room) => {
                let all = by_room.get_mut(&room).expect("it was found");
                let sample = all.pop().expect("a room has samples");
                if all.is_empty() {
                    by_room.remove(&room);
                }
                samples[sample].push(at);
                (room, sample)
            }
            None => {
                samples.push(vec![at]);
                (context, samples.len() - 1)
            }
        };
        by_room.entry(room - length(at)).or_default().push(sample);
    }
    samples.iter_mut().for_each(|sample| sample.sort_unstable());
    samples.sort_unstable();
    samples
}

impl Dataset for Examples {
    fn len(&self) -> u64 {
        self.firsts.len() as u64
    }

    fn spec(&self) -> SampleSpec {
        let vocabulary = self.vocabulary;
        SampleSpec {
            input: InputSpec::Tokens { length: self.context, vocabulary },
            target: TargetSpec::ClassPerToken { classes: vocabulary },
        }
    }

    fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        self.check(index)?;
        let mut at = 0;
        for places in self.of(index) {
            let inputs = places.start..places.end - 1;
            let (tokens, next) = (self.ids.at(inputs.clone()), self.ids.at(places.start + 1..places.end));
            sample.tokens()[at..].iter_mut().zip(tokens).for_each(|(token, id)| *token = id);
            let classes = sample.token_classes()[at..].iter_mut();
            for ((class, id), place) in classes.zip(next).zip(places.start + 1..) {
                if self.mask.is_learnt(place) {
                    *class = id;
                }
            }
            at += inputs.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_packed_where_they_leave_the_least_room_each_once() {
        let lengths = [3, 9, 2, 5, 5, 1, 10];
        let mut start = 0;
        let examples: Vec<Range<usize>> = lengths
            .iter()
            .map(|length| {
                let places = start..start + length + 1;
                start = places.end;
                places
            })
            .collect();
        let samples = packed(&examples, 10);
        assert_eq!(samples, [vec![0, 2], vec![1, 5], vec![3, 4], vec![6]]);
        assert!(samples.iter().all(|sample| sample.iter().map(|at| lengths[*at]).sum::<usize>() <= 10));
    }
}
