//! Which rows are held out for validation. A pure function of the number of rows, or of their groups.
//!
//! It does not know the run's seed: two runs with different seeds validate on the same rows and can be compared.

use crate::DataError;
use crate::groups::{Groups, HeldOutGroups};
use dtrain_types::{Epoch, Permutation, Seed};
use std::ops::Range;

/// Seeds the choice of scattered rows; any fixed number does.
const SPLIT_SEED: Seed = Seed(0x5350_4C49_5453_5054);

/// Which rows are held out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HeldOut {
    /// Rows from all over, chosen once and for all; of rows with groups, groups. Tables are often sorted by label, so this is the default.
    #[default]
    Scattered,
    /// The last rows, or groups: for series in time, or where the order of the file has a meaning.
    Last,
    /// These groups, however many rows they have.
    Groups(Vec<String>),
}

/// How many rows are held out for validation, and which.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValSplit {
    /// The share of the rows, from 0 (none) to below 1; rounded up to whole rows, or to whole groups.
    pub fraction: f64,
    /// Which rows.
    pub held_out: HeldOut,
}

/// Some of the rows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    Range { first: u64, len: u64 },
    Listed(Vec<u64>),
}

impl Selection {
    pub fn len(&self) -> u64 {
        match self {
            Self::Range { len, .. } => *len,
            Self::Listed(rows) => rows.len() as u64,
        }
    }

    /// The row in the table of sample `index`.
    pub fn row(&self, index: u64) -> u64 {
        assert!(index < self.len(), "sample {index} of {}", self.len());
        match self {
            Self::Range { first, .. } => first + index,
            Self::Listed(rows) => rows[index as usize],
        }
    }
}

/// How many of `rows` a share holds out: rounded up, but a product that is whole but for rounding stays whole.
///
/// *Errors*: the share is not in `0..1`, or leaves a side empty.
pub(crate) fn held_out_count(fraction: f64, rows: u64) -> Result<u64, DataError> {
    if !(0.0..1.0).contains(&fraction) {
        let lacking = if fraction >= 1.0 { "training" } else { "validation" };
        return Err(DataError::Split { fraction, rows, lacking });
    }
    let count = (fraction * rows as f64 - 1e-6).ceil().max(0.0) as u64;
    match (count, fraction > 0.0) {
        (0, true) => Err(DataError::Split { fraction, rows, lacking: "validation" }),
        (count, true) if count >= rows => Err(DataError::Split { fraction, rows, lacking: "training" }),
        (count, _) => Ok(count),
    }
}

/// Those of `rows` rows that are at some places of the one order that scatters them, ascending.
pub(crate) fn scattered(rows: u64, places: Range<u64>) -> Vec<u64> {
    let order = Permutation::new(SPLIT_SEED, Epoch(0), rows);
    let mut rows: Vec<u64> = places.map(|place| order.sample(place)).collect();
    rows.sort_unstable();
    rows
}

impl ValSplit {
    /// Cuts `rows` rows into a training part and, if asked for, a validation part; each in the order of the file.
    pub(crate) fn cut(&self, rows: u64) -> Result<(Selection, Option<Selection>), DataError> {
        let held = held_out_count(self.fraction, rows)?;
        let kept = rows - held;
        if held == 0 {
            return Ok((Selection::Range { first: 0, len: rows }, None));
        }
        Ok(match &self.held_out {
            HeldOut::Groups(names) => {
                let group = names.first().cloned().unwrap_or_default();
                return Err(DataError::NoSuchGroup { group, known: Vec::new() });
            }
            HeldOut::Last => {
                (Selection::Range { first: 0, len: kept }, Some(Selection::Range { first: kept, len: held }))
            }
            HeldOut::Scattered => {
                let part = |places| Selection::Listed(scattered(rows, places));
                (part(0..kept), Some(part(kept..rows)))
            }
        })
    }

    /// Cuts rows into the two parts so that no group is in both.
    ///
    /// *Errors*: a group that is not there; no group is left for training.
    pub(crate) fn cut_groups(
        &self,
        groups: &Groups,
    ) -> Result<(Selection, Option<Selection>, HeldOutGroups), DataError> {
        let (rows, all) = (groups.of.len() as u64, groups.names.len());
        let mut held = vec![false; all];
        match &self.held_out {
            HeldOut::Groups(names) => {
                for name in names {
                    let found = groups.names.sorted().find(|(other, _)| other == name);
                    let Some((_, id)) = found else {
                        let known = Groups::shown(groups.names.sorted().map(|(name, _)| name));
                        return Err(DataError::NoSuchGroup { group: name.clone(), known });
                    };
                    held[id as usize] = true;
                }
            }
            how => {
                let wanted = held_out_count(self.fraction, rows)?;
                let mut sizes = vec![0u64; all];
                groups.of.iter().for_each(|group| sizes[*group as usize] += 1);
                // In the order of their names, so that the order of rows decides nothing.
                let sorted: Vec<u32> = groups.names.sorted().map(|(_, id)| id).collect();
                let order = Permutation::new(SPLIT_SEED, Epoch(0), all as u64);
                let last = (0..all as u64).rev().map(|place| match how {
                    HeldOut::Last => place as usize,
                    _ => sorted[order.sample(place) as usize] as usize,
                });
                let mut count = 0;
                for group in last.take_while(|_| wanted > 0) {
                    if count >= wanted {
                        break;
                    }
                    count += sizes[group];
                    held[group] = true;
                }
            }
        }
        let side = |is_held: bool| {
            let rows = (0..).zip(&groups.of).filter(|(_, group)| held[**group as usize] == is_held);
            rows.map(|(row, _)| row).collect::<Vec<u64>>()
        };
        let (train, val) = (side(false), side(true));
        if train.is_empty() {
            return Err(DataError::AllGroupsHeldOut { groups: all });
        }
        let names =
            Groups::shown(groups.names.sorted().filter(|(_, id)| held[*id as usize]).map(|(name, _)| name));
        let val = (!val.is_empty()).then_some(Selection::Listed(val));
        Ok((Selection::Listed(train), val, HeldOutGroups { names, all }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_holding_out_use_every_row_once() {
        for held_out in [HeldOut::Last, HeldOut::Scattered] {
            for rows in [2u64, 3, 10, 101, 1797] {
                let (train, val) = ValSplit { fraction: 0.2, held_out: held_out.clone() }.cut(rows).unwrap();
                let val = val.unwrap();
                let mut seen: Vec<u64> = (0..train.len()).map(|i| train.row(i)).collect();
                seen.extend((0..val.len()).map(|i| val.row(i)));
                seen.sort_unstable();
                assert_eq!(seen, (0..rows).collect::<Vec<_>>());
                assert_eq!(val.len(), (rows as f64 * 0.2).ceil() as u64);
            }
        }
    }

    #[test]
    fn a_scattered_split_is_not_the_end_and_repeats() {
        let split = ValSplit { fraction: 0.25, held_out: HeldOut::Scattered };
        let (_, val) = split.cut(100).unwrap();
        assert_eq!(split.cut(100).unwrap().1, val);
        assert!(val.unwrap().row(0) < 50);
    }

    #[test]
    fn no_group_is_on_both_sides_and_the_order_of_rows_decides_nothing() {
        let groups = |rows: &[&str]| {
            let mut groups = Groups::default();
            rows.iter().for_each(|row| groups.push(row));
            groups
        };
        let rows = ["b", "a", "b", "c", "d", "a", "10", "9", "c", "d"];
        let cut = |held_out, rows: &[&str]| ValSplit { fraction: 0.3, held_out }.cut_groups(&groups(rows));
        for held_out in
            [HeldOut::Scattered, HeldOut::Last, HeldOut::Groups(vec!["9".into(), "a".into(), "10".into()])]
        {
            let (train, val, held) = cut(held_out.clone(), &rows).unwrap();
            let val = val.unwrap();
            assert_eq!(train.len() + val.len(), 10);
            assert!((3..=4).contains(&val.len()) && held.all == 6, "{held:?}");
            assert!((0..10).all(|at| {
                let is_held = held.names.iter().any(|name| name == rows[at as usize]);
                let on = |side: &Selection| (0..side.len()).any(|row| side.row(row) == at);
                on(&val) == is_held && on(&train) != is_held
            }));
            let turned: Vec<&str> = rows.iter().rev().copied().collect();
            if held_out == HeldOut::Scattered {
                assert_eq!(cut(held_out, &turned).unwrap().2, held);
            }
        }
        assert_eq!(cut(HeldOut::Last, &rows).unwrap().2.names, ["9", "10", "d"], "the last that came");
        let named = |names: &[&str]| HeldOut::Groups(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(cut(named(&["10", "9", "a"]), &rows).unwrap().2.names, ["9", "10", "a"]);
        assert!(
            matches!(cut(named(&["x"]), &rows), Err(DataError::NoSuchGroup { known, .. }) if known.len() == 6)
        );
        assert!(matches!(cut(HeldOut::Scattered, &["a"; 5]), Err(DataError::AllGroupsHeldOut { groups: 1 })));
        let none =
            ValSplit { fraction: 0.0, held_out: HeldOut::Scattered }.cut_groups(&groups(&rows)).unwrap();
        assert!(none.1.is_none() && none.2.names.is_empty());
    }

    #[test]
    fn a_product_that_is_whole_but_for_rounding_stays_whole() {
        assert_eq!(held_out_count(0.07, 100).unwrap(), 7);
        assert_eq!(held_out_count(0.2, 1797).unwrap(), 360);
        assert_eq!(held_out_count(0.0, 10).unwrap(), 0);
    }

    #[test]
    fn a_split_that_leaves_a_side_empty_is_refused() {
        for (fraction, rows, side) in
            [(0.9, 2, "training"), (1.0, 9, "training"), (-0.1, 9, "validation"), (f64::NAN, 9, "validation")]
        {
            match held_out_count(fraction, rows) {
                Err(DataError::Split { lacking, .. }) => assert_eq!(lacking, side),
                other => panic!("{fraction} of {rows}: {other:?}"),
            }
        }
    }
}
