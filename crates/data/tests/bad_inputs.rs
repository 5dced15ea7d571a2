//! What is wrong with a file is said with its name, its place and the numbers.

mod support;

use dtrain_data::{
    Augment, Column, CsvOptions, CsvTarget, EvaluationPlan, IdxOptions, Normalise, NpyOptions, NpyTarget,
    Source, TextOptions, TokensOptions, ValSplit,
};
use dtrain_types::MicroBatch;
use std::path::{Path, PathBuf};
use support::{all, file, gzip, idx, little, npy, refused};

/// Asserts that every part is in the message.
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

fn csv(folder: &Path, text: &str) -> CsvOptions {
    CsvOptions::new(file(folder, "t.csv", text))
}

#[test]
fn a_missing_file_is_named_with_what_the_kind_needs() {
    let nowhere = PathBuf::from("/nowhere/at/all");
    let sources = [
        Source::Idx(IdxOptions::new(&nowhere, &nowhere)),
        Source::Csv(CsvOptions::new(&nowhere)),
        Source::Npy(NpyOptions::new(&nowhere, &nowhere)),
        Source::Text(TextOptions::new(&nowhere)),
        Source::Tokens(TokensOptions::new(&nowhere)),
    ];
    for source in sources {
        let hint = dtrain_data::open(&source).unwrap_err().hint();
        says(&hint, &["needs"]);
        assert_eq!(refused(source), "/nowhere/at/all does not exist");
    }
}

#[test]
fn a_folder_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    says(&refused(Source::Text(TextOptions::new(folder.path()))), &["cannot read", "directory"]);
}

#[test]
fn idx_files_are_checked_against_their_headers() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| file(folder.path(), name, bytes);
    let images = at("images", &idx(&[2, 1, 2], &[1, 2, 3, 4]));
    let labels = at("labels", &idx(&[2], &[0, 1]));
    let opened = |images: &Path, labels: &Path| refused(Source::Idx(IdxOptions::new(images, labels)));
    says(&opened(&labels, &images), &["labels begins with 00 00 08 01, expected 00 00 08 03"]);
    let cut = at("cut", &idx(&[2, 1, 2], &[1, 2, 3]));
    says(&opened(&cut, &labels), &["cut holds 19 bytes, expected 20"]);
    let long = at("long", &idx(&[2, 1, 2], &[1, 2, 3, 4, 5]));
    says(&opened(&long, &labels), &["long holds 21 bytes, expected 20"]);
    let header = at("header", &idx(&[2, 1, 2], &[])[..9]);
    says(&opened(&header, &labels), &["header holds 9 bytes, expected 16"]);
    let huge = at("huge", &idx(&[u32::MAX, u32::MAX, u32::MAX, u32::MAX], &[]));
    says(&opened(&huge, &labels), &["huge holds 20 bytes"]);
    let floats = at("floats", &[0, 0, 0x0D, 3, 0, 0, 0, 0]);
    says(&opened(&floats, &labels), &["elements of type 0d"]);
    says(&opened(&at("text", b"hello"), &labels), &["begins with 68 65 6c 6c"]);
    says(&opened(&at("nothing", b""), &labels), &["nothing holds no sample"]);
    says(&opened(&at("none", &idx(&[0, 1, 2], &[])), &at("nol", &idx(&[0], &[]))), &["none holds no sample"]);
    let three = at("three", &idx(&[3], &[0, 1, 0]));
    says(&opened(&images, &three), &["images has 2 samples", "three has 3 targets"]);
    let broken = at("broken.gz", &gzip(&idx(&[2, 1, 2], &[1, 2, 3, 4]))[..20]);
    says(&opened(&broken, &labels), &["cannot read", "broken.gz"]);
    let few = IdxOptions { classes: Some(1), ..IdxOptions::new(&images, &labels) };
    says(&refused(Source::Idx(few)), &["labels row 2: label 1 is out of range for 1 class"]);
}

#[test]
fn validation_samples_must_have_the_shape_of_training_samples() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| file(folder.path(), name, bytes);
    let options = IdxOptions {
        val: Some((at("vi", &idx(&[1, 2, 2], &[0; 4])), at("vl", &idx(&[1], &[0])))),
        ..IdxOptions::new(at("i", &idx(&[1, 1, 2], &[0, 1])), at("l", &idx(&[1], &[0])))
    };
    says(&refused(Source::Idx(options)), &["vi have shape [1, 2, 2], expected [1, 1, 2]"]);
}

#[test]
fn a_table_names_the_line_and_the_column() {
    let folder = tempfile::tempdir().unwrap();
    let says_of = |text: &str, parts: &[&str]| says(&refused(Source::Csv(csv(folder.path(), text))), parts);
    says_of("1,2,0\n3,four,1\n", &["t.csv line 2, column 2: \"four\" is not a number"]);
    says_of("a,b,c\n1,2,0\n\n3,,1\n", &["line 4, column 2 (b): \"\" is not a number"]);
    says_of("1,2,0\n3,4,5,1\n", &["line 2: 4 columns, expected 3"]);
    says_of("1,2,0\n3\n", &["line 2: 1 column, expected 3"]);
    says_of("1,2,0\n1,2,0.5\n", &["row 2: label \"0.5\" is not a whole number"]);
    says_of("1,2,0\n1,2,dog\n", &["row 2: label \"dog\" is not a whole number"]);
    says_of("1,2,0\n1,2,-1\n", &["row 2: label -1 is out of range"]);
    says_of("1,2,0\n1,2,70000\n", &["row 2: label 70000 is out of range for 65536 classes"]);
    says_of("1,nan,0\n", &["line 1, column 2: the value is NaN"]);
    says_of("1,1e39,0\n", &["line 1, column 2: the value is inf"]);
    says_of("", &["t.csv holds no sample"]);
    says_of("\n\n", &["t.csv holds no sample"]);
    says_of("a,b,c\n", &["t.csv holds no sample"]);
    says_of("7\n8\n", &["have shape [0], expected [0]"]);
}

#[test]
fn options_that_do_not_fit_a_table_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let good = || csv(folder.path(), "a,b,c\n1,2,0\n3,4,1\n");
    let name = CsvOptions { label: Column::Name("d".into()), ..good() };
    says(&refused(Source::Csv(name)), &["no column \"d\", only a, b, c"]);
    let index = CsvOptions { label: Column::Index(3), ..good() };
    says(&refused(Source::Csv(index)), &["no column 3, only 3 columns"]);
    let no_header = CsvOptions { header: Some(false), ..good() };
    says(&refused(Source::Csv(no_header)), &["line 1, column 1: \"a\" is not a number"]);
    let shape = CsvOptions { shape: Some(vec![1, 2, 2]), ..good() };
    says(&refused(Source::Csv(shape)), &["have shape [2], expected [1, 2, 2]"]);
    let flip = CsvOptions { augment: Augment { flip: true, ..Augment::default() }, ..good() };
    says(&refused(Source::Csv(flip)), &["augmentation flip does not fit samples of shape [2]"]);
    let split = CsvOptions { val_split: ValSplit { fraction: 0.9, ..ValSplit::default() }, ..good() };
    says(&refused(Source::Csv(split)), &["val_split 0.9 of 2 rows leaves no row for training"]);
    let classes = CsvOptions { target: CsvTarget::Class { classes: Some(1) }, ..good() };
    says(&refused(Source::Csv(classes)), &["row 3: label 1 is out of range for 1 class"]);
}

#[test]
fn numpy_arrays_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: Vec<u8>| file(folder.path(), name, bytes);
    let y = at("y.npy", npy("<i4", &[2], &little(&[0, 1], i32::to_le_bytes)));
    let x = at("x.npy", npy("<f4", &[2, 1], &little(&[0.0f32, 1.0], f32::to_le_bytes)));
    let opened = |x: &Path, y: &Path| refused(Source::Npy(NpyOptions::new(x, y)));
    says(&opened(&at("c.npy", npy("<c8", &[2], &[0; 16])), &y), &["elements of type <c8", "float32"]);
    says(&opened(&at("b.npy", npy(">f4", &[2], &[0; 8])), &y), &["elements of type >f4"]);
    says(&opened(&at("s.npy", npy("<f4", &[2, 2], &[0; 8])), &y), &["s.npy holds", "expected"]);
    says(&opened(&at("t.npy", b"hello".to_vec()), &y), &["begins with 68 65", "NumPy"]);
    says(&opened(&at("v.npy", b"\x93NUMPY\x01\x00\xff\xff{".to_vec()), &y), &["has 65535 bytes"]);
    let nan = at("n.npy", npy("<f4", &[2, 2], &little(&[0.0, 1.0, 2.0, f32::NAN], f32::to_le_bytes)));
    says(&opened(&nan, &y), &["n.npy row 2, element 2: the value is NaN"]);
    let three = at("y3.npy", npy("<i4", &[3], &[0; 12]));
    says(&opened(&x, &three), &["x.npy has 2 samples", "y3.npy has 3 targets"]);
    let wide = at("yw.npy", npy("<i4", &[2, 2], &[0; 16]));
    says(&opened(&x, &wide), &["yw.npy have shape [2, 2], expected [2]"]);
    let negative = at("yn.npy", npy("<i4", &[2], &little(&[0, -1], i32::to_le_bytes)));
    says(&opened(&x, &negative), &["yn.npy row 2: label -1 is out of range"]);
    let half = at("yh.npy", npy("<f4", &[2], &little(&[0.0f32, 0.5], f32::to_le_bytes)));
    let target = NpyTarget::Class { classes: None };
    let options = NpyOptions { target, ..NpyOptions::new(&x, &half) };
    says(&refused(Source::Npy(options)), &["row 2: label 0.5 is not a whole number"]);
    let none = at("x0.npy", npy("<f4", &[0, 3], &[]));
    says(&opened(&none, &at("y0.npy", npy("<i4", &[0], &[]))), &["x0.npy holds no sample"]);
    let huge = usize::MAX / 2;
    let flat = at("y2.npy", npy("<f4", &[2, huge, huge, 0], &[]));
    says(&opened(&x, &flat), &["y2.npy holds no sample"]);
    let factor = NpyOptions { normalise: Normalise::Scale(f32::NAN), ..NpyOptions::new(&x, &y) };
    says(&refused(Source::Npy(factor)), &["normalize is NaN"]);
}

#[test]
fn a_text_must_be_longer_than_a_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "t.txt", "twenty bytes of text");
    let options = |context, val_split| Source::Text(TextOptions { path: path.clone(), context, val_split });
    says(&refused(options(20, 0.0)), &["training part", "has 20 bytes, fewer than context + 1 = 21"]);
    says(&refused(options(4, 0.1)), &["validation part", "has 2 bytes, fewer than context + 1 = 5"]);
    says(&refused(options(0, 0.1)), &["context is 0"]);
    says(&refused(options(4, 1.5)), &["val_split 1.5"]);
    let empty = TextOptions::new(file(folder.path(), "e.txt", ""));
    says(&refused(Source::Text(empty)), &["e.txt holds no sample"]);
}

/// The bytes of token ids from 0 on.
fn ids(count: u16) -> Vec<u8> {
    little(&(0..count).collect::<Vec<u16>>(), u16::to_le_bytes)
}

#[test]
fn a_file_that_is_not_one_of_token_ids_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: Vec<u8>| file(folder.path(), name, bytes);
    let opened =
        |path: PathBuf| refused(Source::Tokens(TokensOptions { context: 4, ..TokensOptions::new(path) }));
    says(&opened(folder.path().to_owned()), &["/train.bin does not exist"]);
    says(&opened(PathBuf::from("/dev/null")), &["/dev/null is no plain file"]);
    says(&opened(at("empty.bin", Vec::new())), &["empty.bin holds no sample"]);
    says(
        &opened(at("odd.bin", vec![0; 101])),
        &["odd.bin holds 101 bytes, no multiple of the 2 of a token id"],
    );
    says(&opened(at("ids.bin.gz", gzip(&ids(100)))), &["ids.bin.gz is compressed"]);
    says(
        &opened(at("ids.bin.zst", zstd::encode_all(&ids(100)[..], 3).unwrap())),
        &["ids.bin.zst is compressed"],
    );
    says(&opened(at("ids.npy", npy("<u2", &[100], &ids(100)))), &["ids.npy is an array saved by numpy.save"]);
    // What begins as a gzip file does is not one for that: 35 615 is an id of GPT-2.
    let mut like_gzip = ids(100);
    like_gzip[..2].copy_from_slice(&[0x1f, 0x8b]);
    let options = TokensOptions { context: 4, ..TokensOptions::new(at("like.bin", like_gzip)) };
    assert_eq!(
        all(&*dtrain_data::open(&Source::Tokens(options)).unwrap().train).inputs().u32()[..2],
        [35_615, 1]
    );
}

#[test]
fn token_ids_must_be_enough_for_a_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "train.bin", ids(20));
    let good = TokensOptions { context: 4, ..TokensOptions::new(&path) };
    let part = |part, words: &str, options| {
        says(&refused(Source::Tokens(options)), &[part, words]);
    };
    let long = TokensOptions { context: 20, val_split: 0.0, ..good.clone() };
    part("training part", "train.bin has 20 tokens, fewer than context + 1 = 21", long);
    part("validation part", "train.bin has 2 tokens, fewer than context + 1 = 5", good.clone());
    part("context is 0", "at least 1", TokensOptions { context: 0, ..good.clone() });
    part("val_split 1.5", "20 rows", TokensOptions { val_split: 1.5, ..good.clone() });
    file(folder.path(), "val.bin", ids(4));
    let beside = TokensOptions { path: folder.path().to_owned(), ..good.clone() };
    part("validation part", "val.bin has 4 tokens", beside);
    let val_path = Some(folder.path().join("none.bin"));
    part("none.bin", "does not exist", TokensOptions { val_path, ..good });
}

#[test]
fn an_id_beyond_the_vocabulary_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "train.bin", ids(40));
    let options = |vocabulary| TokensOptions {
        context: 4,
        vocabulary: Some(vocabulary),
        val_split: 0.5,
        ..TokensOptions::new(&path)
    };
    let refused_at = |vocabulary| refused(Source::Tokens(options(vocabulary)));
    // The first sample of each part is looked at when the file is opened: ids 0 to 4, and 20 to 24.
    says(&refused_at(4), &["train.bin position 4: token id 4 is out of range for a vocabulary of 4"]);
    says(&refused_at(22), &["train.bin position 22: token id 22 is out of range"]);
    // Others when they are read, of which the last id is only predicted.
    let opened = dtrain_data::open(&Source::Tokens(options(36))).unwrap();
    let val = opened.val.unwrap();
    let plan = EvaluationPlan::new(val.len(), 1);
    let mut batch = plan.batch(&*val);
    for sample in 0..3 {
        plan.read(&*val, MicroBatch(sample), &mut batch).unwrap();
    }
    let error = plan.read(&*val, MicroBatch(3), &mut batch).unwrap_err();
    says(&error.to_string(), &["train.bin position 36: token id 36", "vocabulary of 36"]);
    says(&error.hint(), &["data.vocabulary", "u16"]);
}
