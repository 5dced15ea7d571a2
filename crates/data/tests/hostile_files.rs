//! Whatever bytes a file holds, opening it gives a data set or an error, never a panic; and a data set that opens can
//! be read to its end.

mod support;

use dtrain_data::{
    CsvOptions, DataError, EvaluationPlan, IdxOptions, NpyOptions, Opened, Source, TextOptions,
    TokensOptions, ValSplit, open,
};
use dtrain_types::MicroBatch;
use proptest::prelude::*;
use std::path::Path;
use support::{file, gzip, idx, little, npy};

/// Good files of each kind: the two files that a source needs, or one and an empty one.
fn good(kind: usize) -> (Vec<u8>, Vec<u8>) {
    match kind {
        0 => (idx(&[3, 2, 2], &[7; 12]), idx(&[3], &[0, 1, 2])),
        1 => (gzip(&idx(&[3, 2, 2], &[7; 12])), gzip(&idx(&[3], &[0, 1, 2]))),
        2 => (npy("<f4", &[3, 1], &[0; 12]), npy("<i4", &[3], &little(&[0, 1, 2], i32::to_le_bytes))),
        3 => (b"a,b,c\n1,2,0\n3,4,1\n5,6,1\n".to_vec(), Vec::new()),
        4 => (b"some text, long enough for a few windows".to_vec(), Vec::new()),
        _ => (little(&(0..40).collect::<Vec<u16>>(), u16::to_le_bytes), Vec::new()),
    }
}

fn source(kind: usize, first: &Path, second: &Path) -> Source {
    let val_split = ValSplit { fraction: 0.3, ..ValSplit::default() };
    match kind {
        0 | 1 => Source::Idx(IdxOptions { val_split, ..IdxOptions::new(first, second) }),
        2 => Source::Npy(NpyOptions { val_split, ..NpyOptions::new(first, second) }),
        3 => Source::Csv(CsvOptions { val_split, ..CsvOptions::new(first) }),
        4 => Source::Text(TextOptions { context: 4, val_split: 0.3, ..TextOptions::new(first) }),
        _ => Source::Tokens(TokensOptions { context: 4, val_split: 0.3, ..TokensOptions::new(first) }),
    }
}

fn read_all(opened: &Opened) -> Result<u64, DataError> {
    let mut rows = 0;
    for dataset in [Some(&opened.train), opened.val.as_ref()].into_iter().flatten() {
        let plan = EvaluationPlan::new(dataset.len(), 2);
        let mut batch = plan.batch(&**dataset);
        for micro_batch in 0..plan.micro_batches() {
            plan.read(&**dataset, MicroBatch(micro_batch), &mut batch)?;
            rows += batch.rows() as u64;
        }
    }
    Ok(rows)
}

/// Opens a pair of files and reads what can be read.
fn survives(kind: usize, first: &[u8], second: &[u8]) -> Result<u64, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (file(folder.path(), "first", first), file(folder.path(), "second", second));
    read_all(&open(&source(kind, &first, &second))?)
}

#[test]
fn the_files_to_be_spoilt_are_good() {
    for kind in 0..6 {
        let (first, second) = good(kind);
        assert!(survives(kind, &first, &second).unwrap() >= 3, "kind {kind}");
    }
}

proptest! {
    #[test]
    fn a_spoilt_file_gives_an_error_or_a_data_set(
        kind in 0usize..6, in_second: bool, cut in 0.0f64..1.2, places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let (mut first, mut second) = good(kind);
        let spoilt = if in_second && !second.is_empty() { &mut second } else { &mut first };
        for (place, byte) in places {
            let place = place.index(spoilt.len());
            spoilt[place] = byte;
        }
        spoilt.truncate((spoilt.len() as f64 * cut) as usize);
        if let Err(error) = survives(kind, &first, &second) {
            prop_assert!(!error.to_string().is_empty() && !error.hint().is_empty());
        }
    }

    #[test]
    fn any_bytes_give_an_error_or_a_data_set(kind in 0usize..6, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (first, second) = good(kind);
        let _ = survives(kind, &bytes, &second);
        let _ = survives(kind, &first, &bytes);
    }
}
