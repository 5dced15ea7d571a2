//! Numbers that are not finite, for which JSON has no word: they are written as `null`.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Reads back what the writer made of a number that was not finite.
pub(crate) fn null_is_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads numbers by name, without those that were not finite.
pub(crate) fn without_nulls<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let all = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|(name, number)| Some((name, number?))).collect())
}
