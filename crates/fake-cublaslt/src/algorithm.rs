//! Algorithms: how K is cut, for which types and alignments, in the 64 bytes that a caller keeps.
//!
//! As sixteen words: "FAKECBLT", the attributes of its configuration in the order of [`CONFIGURATION`], the types of A, B, C and D,
//! the compute type, the alignments of A, B, C and D, and a checksum of all of them.
//!
//! | number | runs of K in a block |
//! |---|---|
//! | 66 | 1 |
//! | 67 | 4 |
//! | 21 | 3 |

use crate::attributes::{Attributes, Row};
use crate::matrix::kind;
use crate::objects::{ALIGNMENT, MOST_WORKSPACE, SCHEMES};
use crate::problem::Problem;
use crate::status::{Answer, INVALID_VALUE, NOT_SUPPORTED, Status, demand};
use std::ffi::{c_uint, c_void};

/// What a caller keeps.
pub(crate) type Words = [u32; 16];

const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"FAKE"), u32::from_le_bytes(*b"CBLT")];

pub(crate) const NUMBER: c_uint = 0;
const TILE: c_uint = 1;
const CUTS: c_uint = 2;
const SCHEME: c_uint = 3;

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: partial sums are f32, in the workspace.
const BY_COMPUTE_TYPE: u64 = 2;

/// `cublasLtMatmulAlgoConfigAttributes_t`.
const CONFIGURATION: [Row; 9] = [
    (NUMBER, 4, 0),
    (TILE, 4, 20),
    (CUTS, 4, 1),
    (SCHEME, 4, 0),
    (4, 4, 0),
    (5, 4, 0),
    (6, 4, 0),
    (7, 2, 0),
    (8, 2, 0),
];

/// Which number has how many runs.
const RUNS: [(u64, usize); 3] = [(66, 1), (67, 4), (21, 3)];

/// What heuristics offer, best first: number, tile, how many blocks share K.
const OFFERED: [(u64, u64, u64); 5] = [(66, 20, 1), (67, 20, 1), (66, 18, 2), (21, 15, 1), (67, 18, 4)];

/// The most that an algorithm wants operands to be aligned to.
const ALIGNED: usize = 16;

#[derive(Clone)]
pub(crate) struct Algorithm {
    pub configuration: Attributes,
    /// What it is for: types and compute type, alignments.
    types: [u32; 2],
    alignments: [u8; 4],
}

fn types(problem: &Problem) -> [u32; 2] {
    let kinds = problem.matrices().map(|matrix| kind(matrix.numbers) as u8);
    [u32::from_le_bytes(kinds), problem.compute]
}

/// A checksum (FNV-1a, by words).
fn checksum(words: &[u32]) -> u32 {
    words.iter().fold(0x811c_9dc5, |sum, word| (sum ^ word).wrapping_mul(0x0100_0193).rotate_left(5))
}

impl Algorithm {
    /// *Errors*: what this library did not make.
    pub fn read(words: &Words) -> Result<Self, Status> {
        demand(words[..2] == MAGIC && words[15] == checksum(&words[..15]), INVALID_VALUE)?;
        let mut configuration = Attributes::new(&CONFIGURATION);
        for ((attribute, ..), value) in CONFIGURATION.iter().zip(&words[2..11]) {
            configuration = configuration.with(*attribute, u64::from(*value));
        }
        let types = [words[11], words[12]];
        Ok(Self { configuration, types, alignments: words[13].to_le_bytes() })
    }

    pub fn words(&self) -> Words {
        let mut words = [0; 16];
        words[..2].copy_from_slice(&MAGIC);
        words[2..11]
            .iter_mut()
            .zip(self.configuration.values())
            .for_each(|(word, value)| *word = value as u32);
        words[11..13].copy_from_slice(&self.types);
        words[13] = u32::from_le_bytes(self.alignments);
        words[15] = checksum(&words[..15]);
        words
    }

    /// Those for a problem, best first.
    ///
    /// *Errors*: an alignment that numbers of the type do not have.
    pub fn offered(problem: &Problem, preference: &Attributes) -> Result<Vec<Self>, Status> {
        let mut alignments = [0; 4];
        for (at, matrix) in problem.matrices().iter().enumerate() {
            let promised = preference.get(ALIGNMENT + at as c_uint) as usize;
            let both = ALIGNED | promised | matrix.pitch_bytes();
            let alignment = 1 << both.trailing_zeros();
            demand(promised > 0 && alignment >= matrix.numbers.bytes(), INVALID_VALUE)?;
            alignments[at] = alignment as u8;
        }
        let (room, schemes) = (preference.get(MOST_WORKSPACE), preference.get(SCHEMES));
        let all = OFFERED.iter().map(|(number, tile, cuts)| {
            let scheme = if *cuts > 1 { BY_COMPUTE_TYPE } else { 0 };
            let configuration = Attributes::new(&CONFIGURATION).with(NUMBER, *number).with(TILE, *tile);
            let configuration = configuration.with(CUTS, *cuts).with(SCHEME, scheme);
            Self { configuration, types: types(problem), alignments }
        });
        let wanted = |it: &Self| {
            let scheme = it.configuration.get(SCHEME);
            scheme & schemes == scheme && it.judged(problem).is_ok_and(|bytes| bytes as u64 <= room)
        };
        Ok(all.filter(wanted).collect())
    }

    /// The bytes of workspace that a problem takes by it.
    ///
    /// *Errors*: a problem that it is not for, or a configuration that cannot be.
    pub fn judged(&self, problem: &Problem) -> Result<usize, Status> {
        demand(self.types == types(problem), INVALID_VALUE)?;
        let mut pairs = problem.matrices().into_iter().zip(self.alignments);
        let aligned = pairs.all(|(matrix, to)| matrix.pitch_bytes().is_multiple_of(usize::from(to)));
        let (cuts, scheme) = (self.cuts(), self.configuration.get(SCHEME));
        let schemed = if cuts > 1 { scheme == BY_COMPUTE_TYPE } else { scheme == 0 };
        let known = RUNS.iter().any(|(number, _)| *number == self.configuration.get(NUMBER));
        let possible = known && aligned && schemed && (1..=problem.inner).contains(&cuts);
        demand(possible, NOT_SUPPORTED)?;
        Ok(if cuts > 1 { cuts * problem.d.rows * problem.d.columns * size_of::<f32>() } else { 0 })
    }

    /// Whether the addresses of A, B, C and D are aligned as it wants them; null is.
    pub fn takes(&self, addresses: [usize; 4]) -> bool {
        addresses.iter().zip(self.alignments).all(|(at, to)| at.is_multiple_of(usize::from(to)))
    }

    /// How many blocks share K.
    pub fn cuts(&self) -> usize {
        self.configuration.get(CUTS) as usize
    }

    /// How many runs each block adds up.
    pub fn runs(&self) -> usize {
        let number = self.configuration.get(NUMBER);
        RUNS.iter().find(|(known, _)| *known == number).map_or(1, |(_, runs)| *runs)
    }

    /// Tells what it can do (`cublasLtMatmulAlgoCapAttributes_t`), as far as it is one number.
    ///
    /// # Safety
    /// As of `Attributes::tell`.
    pub unsafe fn tell_ability(
        &self,
        attribute: c_uint,
        to: *mut c_void,
        room: usize,
        written: *mut usize,
    ) -> Answer {
        // Split-K, its schemes, D beside C, no option, factors of the host, epilogues; alignments follow.
        let table = [(0, 4, 1), (1, 4, BY_COMPUTE_TYPE), (4, 4, 1), (7, 4, 0), (11, 4, 1), (12, 4, 7)];
        let alignments = (16..).zip(self.alignments).map(|(attribute, to)| (attribute, 4, u64::from(to)));
        let table: Vec<Row> = table.into_iter().chain(alignments).collect();
        // SAFETY: the caller's promise.
        unsafe { Attributes::new(&table).tell(attribute, to, room, written) }
    }
}
