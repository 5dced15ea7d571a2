//! Mixup and cutmix: each sample of a micro-batch becomes a mixture with the one before it, and so does its target.
//!
//! One share is drawn for a whole micro-batch, by its place in the run alone. It does not know how samples are read, nor what a loss
//! makes of two targets.
//!
//! *Source*: Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond empirical risk minimization", 2018; Yun, Han, Oh, Chun, Choe and Yoo,
//! "CutMix", 2019; partners, rectangles and shares are those of torchvision.

use super::planes::Planes;
use super::rectangle::Rectangle;
use dtrain_types::Key;
use dtrain_types::numbers::{exp, ln};

/// Whether to mix all of two samples or a part, if both are asked for.
const WHICH: u32 = 0;
/// The middle of the part: row and column.
const MIDDLE: u32 = 1;
/// The share: two words for each of [`TRIES`].
const SHARE: u32 = 16;
/// So often a share is drawn until one counts; of those allowed, a hundred thousandth of all draws takes longer.
const TRIES: u32 = 64;

/// How the samples of a micro-batch are mixed in training. The default mixes nothing.
///
/// A number is the parameter of a symmetric beta distribution that shares are drawn from: of 1 all are equally likely, of a small one
/// most are near 0 or 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Adds up two pictures.
    pub mixup: Option<f32>,
    /// Puts a rectangle of one picture into another. Where both are given each micro-batch draws one of them.
    pub cutmix: Option<f32>,
}

/// What is done to the samples of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mixing {
    /// Of each sample this share is its own.
    All(f32),
    /// This part of each is another's.
    Part(Rectangle),
}

impl Mix {
    /// The parameters that can be drawn from.
    const LEAST: f32 = 0.05;
    const MOST: f32 = 2.0;

    /// A parameter; none if it is no number that it can be.
    pub(super) fn parse(text: &str) -> Option<f32> {
        text.parse().ok().filter(|alpha| (Self::LEAST..=Self::MOST).contains(alpha))
    }

    /// Whether nothing is mixed.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Mixes the samples of a micro-batch, each of this shape, as its key draws. `spare` has room for one of them.
    ///
    /// The share of each that is its own: 1 where nothing was mixed.
    pub(crate) fn samples(&self, values: &mut [f32], shape: &[usize], key: &Key, spare: &mut [f32]) -> f32 {
        let (Some(planes), len) = (Planes::of(shape), spare.len()) else { return 1.0 };
        if values.len() < 2 * len {
            return 1.0;
        }
        match self.draw([planes.height, planes.width], key) {
            Mixing::All(share) => {
                with_the_one_before(values, spare, |own, other| mix_all(own, other, share));
                share
            }
            Mixing::Part(part) => {
                with_the_one_before(values, spare, |own, other| {
                    let pairs = own.chunks_exact_mut(planes.plane()).zip(other.chunks_exact(planes.plane()));
                    pairs.for_each(|(own, other)| take_part(own, other, planes.width, part));
                });
                let (taken, all) = (part.height * part.width, planes.height * planes.width);
                (all - taken) as f32 / all as f32
            }
        }
    }

    fn draw(&self, [height, width]: [usize; 2], key: &Key) -> Mixing {
        let (alpha, is_part) = match (self.mixup, self.cutmix) {
            (Some(_), Some(alpha)) if key.below(WHICH, 2) == 1 => (alpha, true),
            (Some(alpha), _) => (alpha, false),
            (None, alpha) => (alpha.unwrap_or(1.0), true),
        };
        let share = share(f64::from(alpha), key);
        if !is_part {
            return Mixing::All(share as f32);
        }
        let half = 0.5 * (1.0 - share).sqrt();
        let along = |side: usize, word| {
            let middle = key.below(word, side as u32) as usize;
            let reach = (half * side as f64) as usize;
            (middle.saturating_sub(reach), (middle + reach).min(side))
        };
        let ((top, bottom), (left, right)) = (along(height, MIDDLE), along(width, MIDDLE + 1));
        Mixing::Part(Rectangle { top, left, height: bottom - top, width: right - left })
    }
}

/// A draw from the symmetric beta distribution.
///
/// *Source*: Jöhnk, "Erzeugung von betaverteilten und gammaverteilten Zufallszahlen", 1964.
fn share(alpha: f64, key: &Key) -> f64 {
    let power = |word| exp(ln((f64::from(key.bits(word)) + 0.5) / 4_294_967_296.0) / alpha);
    let drawn = (0..TRIES).find_map(|attempt| {
        let (own, other) = (power(SHARE + 2 * attempt), power(SHARE + 2 * attempt + 1));
        (own + other <= 1.0).then(|| own / (own + other))
    });
    drawn.unwrap_or(0.5)
}

/// Calls `mix` for each sample and the one before it as it was; before the first is the last.
pub(crate) fn with_the_one_before<T: Copy>(samples: &mut [T], spare: &mut [T], mix: impl Fn(&mut [T], &[T])) {
    let len = spare.len();
    let last = samples.len() - len;
    spare.copy_from_slice(&samples[last..]);
    for first in (len..samples.len()).step_by(len).rev() {
        let (before, own) = samples[..first + len].split_at_mut(first);
        mix(own, &before[first - len..]);
    }
    mix(&mut samples[..len], spare);
}

/// `own = share own + (1 - share) other`.
pub(crate) fn mix_all(own: &mut [f32], other: &[f32], share: f32) {
    own.iter_mut().zip(other).for_each(|(own, other)| *own = share * *own + (1.0 - share) * other);
}

/// Puts a part of another plane of this width in its place.
fn take_part(own: &mut [f32], other: &[f32], width: usize, part: Rectangle) {
    let rows = own.chunks_exact_mut(width).zip(other.chunks_exact(width));
    for (own, other) in rows.skip(part.top).take(part.height) {
        let columns = part.left..part.left + part.width;
        own[columns.clone()].copy_from_slice(&other[columns]);
    }
}
