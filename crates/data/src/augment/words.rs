//! Which words of a sample's key each augmentation draws. Each has its own, so that adding one changes nothing that another draws.
//!
//! A number never changes: it decides the bits of runs that exist.

/// Whether to mirror.
pub(super) const FLIP: u32 = 0;
/// How far down, and how far to the right; two words.
pub(super) const SHIFT: u32 = 1;
/// Where a crop begins: row and column; two words.
pub(super) const CROP: u32 = 3;
/// The rectangle of a resized crop: [`PER_TRY`] words for each of [`TRIES`].
pub(super) const RESIZED_CROP: u32 = 16;
/// The order of a jitter, and its three factors; four words.
pub(super) const JITTER: u32 = 64;
/// Whether to erase.
pub(super) const ERASE: u32 = 80;
/// The rectangle that is erased: [`PER_TRY`] words for each of [`TRIES`].
pub(super) const ERASED: u32 = 84;
/// The operations of a RandAugment; two words for each.
pub(super) const RAND: u32 = 128;

/// So often a rectangle is drawn until one fits.
pub(super) const TRIES: u32 = 10;
/// Area, aspect, row and column.
pub(super) const PER_TRY: u32 = 4;
