//! Documents of texts, of JSON Lines and of Parquet files, and the vocabulary of a tokenizer that lies beside token ids.

mod support;

use dtrain_data::{DataError, InputSpec, Source, TextPart, Texts, TokensOptions, open};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{all, file, gzip, little, refused};

/// The documents of a file, each put together.
fn documents(path: &Path) -> Result<Vec<String>, DataError> {
    let (mut all, mut begun) = (Vec::new(), None::<String>);
    for part in Texts::open(path, "text")? {
        match part? {
            TextPart::Text(text) => *begun.get_or_insert_default() += &text,
            TextPart::End => all.push(begun.take().expect("an end has a beginning")),
        }
    }
    assert_eq!(begun, None, "a beginning has an end");
    Ok(all)
}

fn said(path: &Path) -> String {
    documents(path).unwrap_err().to_string()
}

#[test]
fn a_text_is_one_document_whole_characters_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    // Longer than a part, with a character of three bytes across each of its ends.
    let text = "\u{20ac}".repeat(1_000_000);
    let path = file(folder.path(), "a.txt", &text);
    let parts: Vec<TextPart> = Texts::open(&path, "text").unwrap().map(Result::unwrap).collect();
    assert!(parts.len() > 3, "{}", parts.len());
    assert!(documents(&path).unwrap() == [text.clone()]);
    assert!(documents(&file(folder.path(), "a.txt.gz", gzip(text.as_bytes()))).unwrap() == [text]);
    assert_eq!(documents(&file(folder.path(), "none.txt", "")).unwrap(), [""; 0]);
    for (bytes, at) in [(&b"ab\xff"[..], "byte 2 "), (b"\xe2\x82", "byte 0 "), (b"a\xe2\x82b", "byte 1 ")] {
        let error = said(&file(folder.path(), "wrong.txt", bytes));
        assert!(error.contains("wrong.txt: ") && error.contains(at) && error.contains("UTF-8"), "{error}");
    }
    let late = [&b"a".repeat(3 << 20)[..], b"\xc3"].concat();
    assert!(said(&file(folder.path(), "late.txt", late)).contains("byte 3145728 "));
    let missing = Texts::open(&folder.path().join("missing.txt"), "text").err().unwrap();
    assert!(missing.to_string().contains("does not exist") && missing.hint().contains(".jsonl"));
}

#[test]
fn each_line_of_json_is_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let lines =
        "{\"text\": \"one\\nline\", \"id\": 1}\n\n{\"id\": 2, \"text\": \"\"}\r\n{\"text\":\"three\"}";
    let path = file(folder.path(), "a.jsonl", lines);
    assert_eq!(documents(&path).unwrap(), ["one\nline", "", "three"]);
    let packed = file(folder.path(), "a.JSONL.gz", gzip(lines.as_bytes()));
    assert_eq!(documents(&packed).unwrap(), ["one\nline", "", "three"]);
    let ids: Vec<_> = Texts::open(&path, "id").unwrap().collect();
    assert!(
        matches!(&ids[..], [Err(error)] if error.to_string().contains("line 1: \"id\" is no text")),
        "{ids:?}"
    );
    for (line, words) in [
        ("{\"text\": \"a\"}\n[1]\n", "line 2: it is no JSON object"),
        ("\n{\"body\": \"a\", \"id\": 1}\n", "line 2: it has no \"text\", but body, id"),
        ("{\"text\": \"a", "line 1: it is no JSON object"),
    ] {
        let error = said(&file(folder.path(), "wrong.jsonl", line));
        assert!(error.contains("wrong.jsonl ") && error.contains(words), "{error}");
    }
}

/// A table of numbers and texts, of which one is missing.
fn table(folder: &Path) -> PathBuf {
    let path = folder.join("a.parquet");
    let schema = "message m { REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap();
    for texts in [["one", "two"], ["\u{e4}", "four"]] {
        let mut group = writer.next_row_group().unwrap();
        let mut ids = group.next_column().unwrap().unwrap();
        ids.typed::<Int64Type>().write_batch(&[1, 2, 3], None, None).unwrap();
        ids.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let texts = texts.map(ByteArray::from);
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&[1, 0, 1]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    path
}

#[test]
fn each_row_of_a_parquet_file_is_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path());
    assert_eq!(documents(&path).unwrap(), ["one", "two", "\u{e4}", "four"]);
    let mut texts = Texts::open(&path, "text").unwrap();
    assert_eq!(texts.read(), 0);
    assert_eq!(texts.by_ref().filter(|part| *part.as_ref().unwrap() == TextPart::End).count(), 4);
    let size = std::fs::metadata(&path).unwrap().len();
    assert_eq!(texts.size(), Some(size));
    let error = |field| match Texts::open(&path, field).map(|mut texts| texts.next().unwrap()) {
        Err(error) | Ok(Err(error)) => error.to_string(),
        Ok(Ok(part)) => panic!("{part:?}"),
    };
    assert!(error("body").contains("it has no column \"body\", but id, text"), "{}", error("body"));
    assert!(error("id").contains("line 1: it is no text"), "{}", error("id"));
    let bytes = std::fs::read(&path).unwrap();
    for end in [8, bytes.len() / 2, bytes.len() - 1] {
        assert!(documents(&file(folder.path(), "half.parquet", &bytes[..end])).is_err(), "{end}");
    }
}

#[test]
fn ids_have_the_vocabulary_of_the_tokenizer_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let ids = file(folder.path(), "train.bin", little(&[7u16; 100], u16::to_le_bytes));
    let options = |path: &Path| TokensOptions { context: 4, ..TokensOptions::new(path) };
    let vocabulary = |options: TokensOptions| match open(&Source::Tokens(options)).unwrap().train.spec().input
    {
        InputSpec::Tokens { vocabulary, .. } => vocabulary,
        InputSpec::Values { .. } => panic!("ids are no values"),
    };
    assert_eq!(vocabulary(options(&ids)), 50_257);
    assert_eq!(options(folder.path()).tokenizer(), None);
    for (tokenizer, expected) in [
        (r#"{"model": {"vocab": {"a": 0, "b": 9}}, "added_tokens": [{"id": 11, "content": "c"}]}"#, 12),
        (r#"{"model": {"vocab": {"a": 0, "b": 9}}, "added_tokens": []}"#, 10),
        (
            r#"{"model": {"type": "Unigram", "vocab": [["a", 0.5], ["b", -1], ["c", 2], ["d", 1], ["e", 1], ["f", 1], ["g", 1], ["h", 1]]}}"#,
            8,
        ),
    ] {
        let beside = file(folder.path(), "tokenizer.json", tokenizer);
        assert_eq!(options(&ids).tokenizer(), Some(beside));
        assert_eq!([vocabulary(options(&ids)), vocabulary(options(folder.path()))], [expected; 2]);
        assert_eq!(vocabulary(TokensOptions { vocabulary: Some(300), ..options(&ids) }), 300);
    }
    for (tokenizer, words) in [
        ("{}", "tokenizer.json is no tokenizer of these ids: missing field"),
        ("[", "EOF"),
        (r#"{"model": {"vocab": {}}}"#, "it has 0 tokens"),
        (
            r#"{"model": {"vocab": {"a": 0, "b": 17000000}}}"#,
            "it has 17000001 tokens, expected 2 to 16777216",
        ),
    ] {
        file(folder.path(), "tokenizer.json", tokenizer);
        let error = refused(Source::Tokens(options(&ids)));
        assert!(error.contains(words), "{error}");
        assert_eq!(vocabulary(TokensOptions { vocabulary: Some(300), ..options(&ids) }), 300);
    }
}

#[test]
fn ids_of_a_large_vocabulary_have_four_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let first = |options: TokensOptions| {
        let opened = open(&Source::Tokens(TokensOptions { context: 4, ..options }))?;
        Ok(all(&*opened.train).inputs().u32()[..4].to_vec())
    };
    let refused = |options| {
        let error: DataError = first(options).unwrap_err();
        format!("{error}\n{}", error.hint())
    };
    // 100 ids that two bytes do not hold, and 100 that they do.
    let wide: Vec<u32> = (0..100).map(|i| 65_530 + i).collect();
    let narrow: Vec<u16> = (0..100).map(|i| 30 + i).collect();
    let wide = file(folder.path(), "wide.bin", little(&wide, u32::to_le_bytes));
    let narrow = file(folder.path(), "narrow.bin", little(&narrow, u16::to_le_bytes));
    let of = |path: &Path, vocabulary| TokensOptions { vocabulary, ..TokensOptions::new(path) };
    assert_eq!(first(of(&wide, Some(65_700))).unwrap(), [65_530, 65_531, 65_532, 65_533]);
    assert_eq!(first(of(&narrow, Some(65_536))).unwrap(), [30, 31, 32, 33]);
    // Said of a large vocabulary, ids of two bytes are two in one.
    let error = refused(of(&narrow, Some(65_537)));
    assert!(error.contains("position 0: token id 2031646") && error.contains("u32"), "{error}");
    let odd = file(folder.path(), "odd.bin", [0; 102]);
    let error = refused(of(&odd, Some(65_537)));
    assert!(error.contains("holds 102 bytes, no multiple of the 4 of a token id"), "{error}");
    // The tokenizer beside them wrote them: a model may have some ids more.
    file(folder.path(), "tokenizer.json", r#"{"model": {"vocab": {"a": 0, "b": 65699}}}"#);
    assert_eq!(first(of(&wide, None)).unwrap()[0], 65_530);
    assert_eq!(first(of(&wide, Some(70_000))).unwrap()[0], 65_530);
    file(folder.path(), "tokenizer.json", r#"{"model": {"vocab": {"a": 0, "b": 65000}}}"#);
    assert_eq!(first(of(&narrow, Some(70_000))).unwrap()[0], 30);
}

#[test]
fn ids_of_four_bytes_are_not_read_as_twice_as_many_of_two() {
    let folder = tempfile::tempdir().unwrap();
    let opened = |name: &str, bytes: Vec<u8>| {
        let path = file(folder.path(), name, bytes);
        open(&Source::Tokens(TokensOptions { context: 4, ..TokensOptions::new(path) }))
    };
    let wide = |most: u32| {
        let ids: Vec<u32> = (0..2_000).map(|i: u32| i.wrapping_mul(2_654_435_761) % most).collect();
        little(&ids, u32::to_le_bytes)
    };
    for most in [50_257, 200_000] {
        let error = opened("wide.bin", wide(most)).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("is a file of u32, expected a file of token ids"), "{error}");
        assert!(error.hint().contains("numpy.uint16"), "{}", error.hint());
    }
    // What only looks so from afar: few ids, or some that are something else.
    opened("few.bin", wide(60)).unwrap();
    let mut one = wide(50_257);
    one[2_002] = 16;
    opened("one.bin", one).unwrap();
}
