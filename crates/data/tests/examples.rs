//! Examples of a file of ids and its mask: which tokens are targets, how they lie in samples, and what is no mask. Records of files, too.

mod support;

use dtrain_data::{
    BEGINS, DataError, ExampleCounts, IGNORED, LEARNT, Opened, Records, Source, TokensOptions, mask_of, open,
};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use support::{all, file, gzip, little, refused};

/// Writes examples, of which the last so many tokens are learnt; ids count from 1.
fn examples(folder: &Path, name: &str, all: &[(usize, usize)]) -> std::path::PathBuf {
    let count = all.iter().map(|(length, _)| length).sum::<usize>() as u16;
    let ids = file(folder, name, little(&(1..=count).collect::<Vec<u16>>(), u16::to_le_bytes));
    let mut mask = Vec::new();
    for (length, learnt) in all {
        let of_token = |place| if place >= length - learnt { LEARNT } else { 0 };
        mask.extend((0..*length).map(|place| of_token(place) | if place == 0 { BEGINS } else { 0 }));
    }
    std::fs::write(mask_of(&ids), mask).unwrap();
    ids
}

fn options(path: &Path) -> TokensOptions {
    TokensOptions { context: 5, vocabulary: Some(100), val_split: 0.0, ..TokensOptions::new(path) }
}

fn opened(options: TokensOptions) -> Opened {
    open(&Source::Tokens(options)).unwrap()
}

const N: u32 = IGNORED;

#[test]
fn each_example_has_a_sample_and_targets_are_what_is_learnt() {
    let folder = tempfile::tempdir().unwrap();
    // One that is whole, one that is longer than a sample, one that has nothing to learn there, one that fits exactly.
    let path = examples(folder.path(), "train.bin", &[(4, 2), (9, 7), (8, 1), (6, 6)]);
    let opened = opened(options(&path));
    let batch = all(&*opened.train);
    #[rustfmt::skip]
    assert_eq!(batch.inputs().u32(), [
        1, 2, 3, 0, 0,
        5, 6, 7, 8, 9,
        22, 23, 24, 25, 26,
    ]);
    #[rustfmt::skip]
    assert_eq!(batch.targets().u32(), [
        N, 3, 4, N, N,
        N, 7, 8, 9, 10,
        23, 24, 25, 26, 27,
    ]);
    let counts = ExampleCounts {
        examples: 3,
        samples: 3,
        places: 15,
        taken: 13,
        is_packed: false,
        cut: 1,
        left_out: 1,
    };
    assert_eq!((opened.examples, opened.val.is_none()), (Some(counts), true));
}

#[test]
fn packed_examples_share_samples_and_none_predicts_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = examples(folder.path(), "train.bin", &[(3, 2), (5, 4), (4, 1), (2, 1)]);
    let opened = opened(TokensOptions { packing: true, ..options(&path) });
    let batch = all(&*opened.train);
    #[rustfmt::skip]
    assert_eq!(batch.inputs().u32(), [
        1, 2, 9, 10, 11,
        4, 5, 6, 7, 13,
    ]);
    #[rustfmt::skip]
    assert_eq!(batch.targets().u32(), [
        2, 3, N, N, 12,
        5, 6, 7, 8, 14,
    ]);
    let counts = ExampleCounts {
        examples: 4,
        samples: 2,
        places: 10,
        taken: 10,
        is_packed: true,
        cut: 0,
        left_out: 0,
    };
    assert_eq!(opened.examples, Some(counts));
}

#[test]
fn whole_examples_are_held_out_or_come_of_a_file_with_a_mask() {
    let folder = tempfile::tempdir().unwrap();
    let path = examples(folder.path(), "train.bin", &[(3, 1); 10]);
    let first = |opened: &Opened| {
        let val = opened.val.as_deref().unwrap();
        (opened.train.len(), val.len(), all(val).inputs().u32()[0])
    };
    assert_eq!(first(&opened(TokensOptions { val_split: 0.3, ..options(&path) })), (7, 3, 22));
    examples(folder.path(), "val.bin", &[(4, 1); 2]);
    assert_eq!(first(&opened(options(folder.path()))), (10, 2, 1));
    std::fs::remove_file(folder.path().join("val.mask")).unwrap();
    let error = refused(Source::Tokens(options(folder.path())));
    assert!(error.contains("val.mask: it is not there"), "{error}");
    // Without a mask beside the ids to train on they are windows.
    std::fs::remove_file(folder.path().join("train.mask")).unwrap();
    assert_eq!(first(&opened(options(folder.path()))), (5, 1, 1));
}

#[test]
fn what_is_no_mask_of_these_ids_is_an_error_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let path = examples(folder.path(), "train.bin", &[(4, 2), (6, 2)]);
    let mask = std::fs::read(mask_of(&path)).unwrap();
    let error = |mask: &[u8], options: TokensOptions| {
        std::fs::write(mask_of(&path), mask).unwrap();
        let error = open(&Source::Tokens(options)).unwrap_err();
        assert!(!error.hint().is_empty(), "{error}");
        error.to_string()
    };
    let changed = |place: usize, byte: u8| {
        let mut mask = mask.clone();
        mask[place] = byte;
        mask
    };
    for (mask, words) in [
        (mask[..9].to_vec(), "it has 9 bytes, and "),
        (changed(0, LEARNT), "no example begins with its first byte"),
        (changed(3, 7), "byte 3 is 7"),
    ] {
        let said = error(&mask, options(&path));
        assert!(said.contains("train.mask: ") && said.contains(words), "{said}");
    }
    let nothing: Vec<u8> = mask.iter().map(|byte| byte & BEGINS).collect();
    assert!(error(&nothing, options(&path)).contains("anything to learn in its first 6 tokens"));
    let context = TokensOptions { context: 0, ..options(&path) };
    assert!(error(&mask, context).contains("context is 0"));
    let vocabulary = TokensOptions { vocabulary: Some(3), ..options(&path) };
    assert!(error(&mask, vocabulary).contains("position 2: token id 3"));
    assert!(
        error(&mask, TokensOptions { val_split: 0.9, ..options(&path) }).contains("leaves"),
        "no example is left"
    );
}

/// All records of a file.
fn records(path: &Path) -> Result<Vec<(u64, Value)>, DataError> {
    Records::open(path)?.map(|record| record.map(|(line, object)| (line, Value::Object(object)))).collect()
}

#[test]
fn records_are_lines_elements_of_a_list_and_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| records(&file(folder.path(), name, bytes));
    let lines = b"{\"a\": 1}\n\n{\"a\": [2]}";
    assert_eq!(at("a.jsonl", lines).unwrap(), [(1, json!({"a": 1})), (3, json!({"a": [2]}))]);
    assert_eq!(at("a.jsonl.gz", &gzip(lines)).unwrap().len(), 2);
    assert_eq!(at("a.jsonl.zst", &zstd::encode_all(&lines[..], 3).unwrap()).unwrap().len(), 2);
    let list = zstd::encode_all(&b"[{}, {}, {}]"[..], 3).unwrap();
    assert_eq!(at("a.json.zst", &list).unwrap().len(), 3);
    assert_eq!(at("a.json", b"[{\"a\": 1}, {}]").unwrap(), [(1, json!({"a": 1})), (2, json!({}))]);
    assert_eq!(at("m.jsonl", b"\xef\xbb\xbf{\"a\": 1}\n").unwrap(), [(1, json!({"a": 1}))]);
    for (name, bytes, words) in [
        ("b.jsonl", &b"{\"a\": 1}\n3"[..], "b.jsonl line 2: it is no JSON object"),
        ("b.json", b"{\"a\": 1}", "b.json: it is no JSON list"),
        ("c.json", b"[{}, 3]", "c.json line 2: it is no JSON object"),
        ("d.parquet", b"PAR1 and no more", "d.parquet: "),
    ] {
        let error = at(name, bytes).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(records(&folder.path().join("none.jsonl")).unwrap_err().to_string().contains("does not exist"));
}

/// Lists of structures, as the hub has conversations in Parquet files.
#[test]
fn rows_of_a_parquet_file_have_their_lists_and_structures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let schema = "message m { OPTIONAL BYTE_ARRAY id (UTF8); OPTIONAL GROUP messages (LIST) { REPEATED GROUP list { \
                  OPTIONAL GROUP element { OPTIONAL BYTE_ARRAY content (UTF8); OPTIONAL BYTE_ARRAY role (UTF8); } } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let columns: [(&[&str], &[i16], &[i16]); 3] = [
        (&["x"], &[1, 0], &[0, 0]),
        (&["Q", "A", "R"], &[4, 4, 4], &[0, 1, 0]),
        (&["user", "assistant", "user"], &[4, 4, 4], &[0, 1, 0]),
    ];
    for (texts, definitions, repetitions) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        let texts: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(*text)).collect();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(definitions), Some(repetitions)).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let turn = |role: &str, content: &str| json!({"content": content, "role": role});
    assert_eq!(
        records(&path).unwrap(),
        [
            (1, json!({"id": "x", "messages": [turn("user", "Q"), turn("assistant", "A")]})),
            (2, json!({"id": null, "messages": [turn("user", "R")]})),
        ]
    );
}
