//! Every kind of data set on real files in a temporary folder.

mod support;

use dtrain_data::{
    Augment, Column, Crop, CsvOptions, CsvTarget, DIGITS_ATTRIBUTION, DigitsOptions, HeldOut, IdxOptions,
    InputSpec, Normalise, NpyOptions, NpyTarget, Source, TargetSpec, TextOptions, TokensOptions, ValSplit,
    class_distribution, open,
};
use support::{all, file, gzip, idx, little, npy, values_and_classes};

const KEEP: Normalise = Normalise::Keep;

#[test]
fn the_built_in_digits_are_there_without_any_file() {
    let options = DigitsOptions { normalise: KEEP, ..DigitsOptions::default() };
    let opened = open(&Source::Digits(options)).unwrap();
    let val = opened.val.unwrap();
    assert_eq!((opened.train.len(), val.len()), (1437, 360));
    assert_eq!(opened.attribution, Some(DIGITS_ATTRIBUTION));
    assert_eq!(opened.class_names, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    let spec = opened.train.spec();
    assert_eq!(spec.input, InputSpec::Values { shape: vec![1, 8, 8] });
    assert_eq!(spec.target, TargetSpec::Class { classes: 10 });
    let (pixels, classes) = values_and_classes(&*opened.train);
    assert_eq!(pixels[..10], [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(classes[..5], [0, 1, 2, 3, 4]);
    assert!(pixels.iter().all(|p| (0.0..=16.0).contains(p)));
    let counts = class_distribution(&*val).unwrap().unwrap();
    assert_eq!(counts.total(), 360);
    assert_eq!(counts.absent().count(), 0);
}

#[test]
fn digits_are_standardised_by_the_training_part() {
    let opened = open(&Source::Digits(DigitsOptions::default())).unwrap();
    let (pixels, _) = values_and_classes(&*opened.train);
    let mean = pixels.iter().map(|p| f64::from(*p)).sum::<f64>() / pixels.len() as f64;
    let square = pixels.iter().map(|p| f64::from(*p).powi(2)).sum::<f64>() / pixels.len() as f64;
    assert!(mean.abs() < 1e-5 && (square - 1.0).abs() < 1e-5, "mean {mean}, mean square {square}");
}

#[test]
fn idx_files_are_read_plain_and_packed_alike() {
    let folder = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = (0..5 * 6).map(|i| i * 8).collect();
    let (images, labels) = (idx(&[5, 2, 3], &pixels), idx(&[5], &[0, 1, 2, 1, 0]));
    let at = |name: &str, bytes: &[u8]| file(folder.path(), name, bytes);
    let plain = IdxOptions {
        normalise: Normalise::Scale(1.0 / 8.0),
        ..IdxOptions::new(at("images", &images), at("labels", &labels))
    };
    let packed = IdxOptions {
        images: at("images.gz", &gzip(&images)),
        labels: at("labels.gz", &gzip(&labels)),
        ..plain.clone()
    };
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
    let smaller = IdxOptions {
        images: at("images.zst", &zstd(&images)),
        labels: at("labels.zst", &zstd(&labels)),
        ..plain.clone()
    };
    for options in [plain, packed, smaller] {
        let opened = open(&Source::Idx(options)).unwrap();
        assert_eq!(opened.train.spec().input, InputSpec::Values { shape: vec![1, 2, 3] });
        assert_eq!(opened.train.spec().target, TargetSpec::Class { classes: 3 });
        assert!(opened.val.is_none());
        let (values, classes) = values_and_classes(&*opened.train);
        assert_eq!(values, (0..30).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(classes, [0, 1, 2, 1, 0]);
    }
}

#[test]
fn idx_validation_files_are_scaled_like_the_training_files_and_may_bring_a_class() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| file(folder.path(), name, bytes);
    let options = IdxOptions {
        val: Some((at("vi", &idx(&[1, 1, 2], &[4, 8])), at("vl", &idx(&[1], &[3])))),
        ..IdxOptions::new(at("i", &idx(&[2, 1, 2], &[0, 0, 4, 4])), at("l", &idx(&[2], &[0, 1])))
    };
    let opened = open(&Source::Idx(options)).unwrap();
    assert_eq!(opened.train.spec().classes(), Some(4));
    assert_eq!(values_and_classes(&*opened.train).0, [-1.0, -1.0, 1.0, 1.0]);
    assert_eq!(values_and_classes(&*opened.val.unwrap()), (vec![1.0, 3.0], vec![3]));
}

#[test]
fn a_table_is_read_with_or_without_a_header_by_any_delimiter() {
    let folder = tempfile::tempdir().unwrap();
    let texts = [
        "1,0,4\n2,1,5\n3,0,6\n",
        "a;label;b\n1;0;4\n\n2;1;5\n3;0;6",
        "a\tlabel\tb\r\n1\t0\t4\r\n2\t1\t5\r\n3\t0\t6\r\n",
        "1 0 4\n2  1  5\n3 0 6\n",
        "0,label,1\n1,0,4\n2,1,5\n3,0,6\n",
        "\"a\",\"label\",\"b\"\n\"1\",\"0\",\"4\"\n2,1.0,5\n3,0,6\n",
    ];
    for text in texts {
        let path = file(folder.path(), "table.csv", text);
        let label = if text.contains("label") { Column::Name("label".into()) } else { Column::Index(1) };
        let options = CsvOptions { label, normalise: KEEP, ..CsvOptions::new(path) };
        let opened = open(&Source::Csv(options)).unwrap();
        let (values, classes) = values_and_classes(&*opened.train);
        assert_eq!((values, classes), (vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0], vec![0, 1, 0]), "{text:?}");
    }
}

#[test]
fn labels_in_words_are_numbered_in_alphabetical_order_over_both_tables() {
    let folder = tempfile::tempdir().unwrap();
    let options = CsvOptions {
        val_path: Some(file(folder.path(), "val.csv", "x,kind\n3,ant\n4,cat\n")),
        normalise: KEEP,
        ..CsvOptions::new(file(folder.path(), "train.csv", gzip(b"x,kind\n1,cat\n2,bee\n")))
    };
    let opened = open(&Source::Csv(options)).unwrap();
    assert_eq!(opened.class_names, ["ant", "bee", "cat"]);
    assert_eq!(values_and_classes(&*opened.train), (vec![1.0, 2.0], vec![2, 1]));
    assert_eq!(values_and_classes(&*opened.val.unwrap()), (vec![3.0, 4.0], vec![0, 2]));
    let shown = class_distribution(&*opened.train).unwrap().unwrap().named(&opened.class_names);
    assert_eq!(shown.to_string(), "3 classes, 2 labels: ant 0 (0.0 %), bee 1 (50.0 %), cat 1 (50.0 %)");
}

#[test]
fn a_table_can_predict_a_value_hold_out_rows_and_skip_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "made by a machine\nx,y\n".to_owned();
    (0..10).for_each(|i| text += &format!("{i},{}\n", i * 2));
    let options = CsvOptions {
        skip: 1,
        target: CsvTarget::Value,
        val_split: ValSplit { fraction: 0.3, held_out: HeldOut::Last },
        ..CsvOptions::new(file(folder.path(), "t.csv", text))
    };
    let opened = open(&Source::Csv(options)).unwrap();
    assert_eq!(opened.train.spec().target, TargetSpec::Values { width: 1 });
    assert!(class_distribution(&*opened.train).unwrap().is_none());
    assert!(opened.class_names.is_empty());
    let (train, val) = (all(&*opened.train), all(&*opened.val.unwrap()));
    assert_eq!(train.targets().f32(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    assert_eq!(val.targets().f32(), [14.0, 16.0, 18.0]);
    // Mean 3 and standard deviation 2 are those of 0..=6, the training part.
    assert_eq!(val.inputs().f32(), [2.0, 2.5, 3.0]);
}

#[test]
fn a_table_with_a_shape_is_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let options = CsvOptions {
        shape: Some(vec![1, 2, 2]),
        augment: "flip+shift".parse().unwrap(),
        ..CsvOptions::new(file(folder.path(), "t.csv", "1,2,3,4,0\n5,6,7,8,1\n"))
    };
    let opened = open(&Source::Csv(options)).unwrap();
    assert_eq!(opened.train.spec().input, InputSpec::Values { shape: vec![1, 2, 2] });
}

#[test]
fn numpy_arrays_of_every_type_give_the_same_samples() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: Vec<u8>| file(folder.path(), name, bytes);
    let shape = [3, 2];
    let values = [1u8, 2, 3, 4, 5, 6];
    let inputs = [
        ("|u1", values.to_vec()),
        ("<f4", little(&values, |v| f32::from(v).to_le_bytes())),
        ("<f8", little(&values, |v| f64::from(v).to_le_bytes())),
        ("<i4", little(&values, |v| i32::from(v).to_le_bytes())),
        ("<i8", little(&values, |v| i64::from(v).to_le_bytes())),
    ];
    let classes = [2i64, 0, 1];
    for (descr, data) in inputs {
        let options = NpyOptions {
            normalise: KEEP,
            ..NpyOptions::new(
                at("x.npy", npy(descr, &shape, &data)),
                at("y.npy", npy("<i8", &[3, 1], &little(&classes, i64::to_le_bytes))),
            )
        };
        let opened = open(&Source::Npy(options)).unwrap();
        assert_eq!(opened.train.spec().input, InputSpec::Values { shape: vec![2] });
        let (values, classes) = values_and_classes(&*opened.train);
        assert_eq!((values, classes), (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![2, 0, 1]), "{descr}");
    }
}

#[test]
fn numpy_images_keep_their_channels_and_real_targets_are_values() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: Vec<u8>| file(folder.path(), name, bytes);
    let targets = little(&[0.5f32, 1.5, 2.5, 3.5], f32::to_le_bytes);
    let options = NpyOptions {
        val: Some((
            at("vx.npy", npy("|u1", &[1, 2, 1, 2], &[4, 0, 30, 10])),
            at("vy.npy", npy("<f4", &[1, 2], &little(&[7.0f32, 8.0], f32::to_le_bytes))),
        )),
        ..NpyOptions::new(
            at("x.npy", npy("|u1", &[2, 2, 1, 2], &[0, 0, 10, 10, 4, 4, 30, 30])),
            at("y.npy", npy("<f4", &[2, 2], &targets)),
        )
    };
    let opened = open(&Source::Npy(options.clone())).unwrap();
    assert_eq!(opened.train.spec().input, InputSpec::Values { shape: vec![2, 1, 2] });
    assert_eq!(opened.train.spec().target, TargetSpec::Values { width: 2 });
    assert_eq!(all(&*opened.train).inputs().f32(), [-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]);
    let val = all(&*opened.val.unwrap());
    assert_eq!((val.inputs().f32(), val.targets().f32()), (&[1.0, -1.0, 1.0, -1.0][..], &[7.0, 8.0][..]));

    let flat = at("y1.npy", npy("<f4", &[2], &little(&[1.0f32, 0.0], f32::to_le_bytes)));
    let target = NpyTarget::Class { classes: Some(3) };
    let opened = open(&Source::Npy(NpyOptions { targets: flat, target, val: None, ..options })).unwrap();
    assert_eq!(values_and_classes(&*opened.train).1, [1, 0]);
    assert_eq!(opened.class_names, ["0", "1", "2"]);
}

#[test]
fn a_text_is_cut_into_windows_that_predict_the_next_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "t.txt", "abcdefghijklmnopqrst");
    let options = TextOptions { path, context: 3, val_split: 0.25 };
    let opened = open(&Source::Text(options)).unwrap();
    assert_eq!(opened.train.spec().input, InputSpec::Tokens { length: 3, vocabulary: 256 });
    assert_eq!(opened.train.spec().target, TargetSpec::ClassPerToken { classes: 256 });
    let text = |tokens: &[u32]| tokens.iter().map(|t| char::from(*t as u8)).collect::<String>();
    let (train, val) = (all(&*opened.train), all(&*opened.val.unwrap()));
    // 15 bytes are for training: four windows have a byte after each of their own.
    assert_eq!(text(train.inputs().u32()), "abcdefghijkl");
    assert_eq!(text(train.targets().u32()), "bcdefghijklm");
    assert_eq!((text(val.inputs().u32()), text(val.targets().u32())), ("pqr".into(), "qrs".into()));
    assert_eq!(class_distribution(&*opened.train).unwrap().unwrap().total(), 12);
}

#[test]
fn token_ids_are_cut_into_windows_that_predict_the_next_id() {
    let folder = tempfile::tempdir().unwrap();
    // Ids of one byte and of two, so that a wrong order of bytes or a wrong step would be seen.
    let ids: Vec<u16> = (0..20).map(|place| place * 2_500 + 1).collect();
    let path = file(folder.path(), "ids.bin", little(&ids, u16::to_le_bytes));
    let options = TokensOptions { context: 3, val_split: 0.25, ..TokensOptions::new(path) };
    let opened = open(&Source::Tokens(options)).unwrap();
    assert_eq!(opened.train.spec().input, InputSpec::Tokens { length: 3, vocabulary: 50_257 });
    assert_eq!(opened.train.spec().target, TargetSpec::ClassPerToken { classes: 50_257 });
    let (train, val) = (all(&*opened.train), all(&*opened.val.unwrap()));
    let wide = |range: std::ops::Range<usize>| ids[range].iter().map(|id| u32::from(*id)).collect::<Vec<_>>();
    // As for a text of 20 bytes: 15 are for training, and the last of a part is only predicted.
    assert_eq!((train.inputs().u32(), train.targets().u32()), (&wide(0..12)[..], &wide(1..13)[..]));
    assert_eq!((val.inputs().u32(), val.targets().u32()), (&wide(15..18)[..], &wide(16..19)[..]));
}

#[test]
fn the_tokens_of_a_folder_are_train_bin_and_val_bin() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, first: u16| {
        let ids: Vec<u16> = (first..first + 9).collect();
        file(folder.path(), name, little(&ids, u16::to_le_bytes))
    };
    let options = TokensOptions { context: 2, val_split: 0.4, ..TokensOptions::new(folder.path()) };
    let first_ids = |options: &TokensOptions| {
        let opened = open(&Source::Tokens(options.clone())).unwrap();
        let val = opened.val.map(|val| (val.len(), all(&*val).inputs().u32()[0]));
        (opened.train.len(), all(&*opened.train).inputs().u32()[0], val)
    };
    at("train.bin", 100);
    assert_eq!(first_ids(&options), (2, 100, Some((1, 105))), "without val.bin a share is held out");
    assert_eq!(first_ids(&TokensOptions { val_split: 0.0, ..options.clone() }), (4, 100, None));
    at("val.bin", 200);
    assert_eq!(first_ids(&options), (4, 100, Some((4, 200))), "nothing is held out beside val.bin");
    let val_path = Some(at("other.bin", 300));
    assert_eq!(first_ids(&TokensOptions { val_path: val_path.clone(), ..options.clone() }).2, Some((4, 300)));
    let path = folder.path().join("train.bin");
    assert_eq!(
        first_ids(&TokensOptions { path: path.clone(), val_path, ..options.clone() }).2,
        Some((4, 300))
    );
    assert_eq!(first_ids(&TokensOptions { path, ..options }).2, Some((1, 105)), "a file has no val.bin");
}

#[test]
fn a_crop_takes_the_middle_for_validation_and_changes_the_shape() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| file(folder.path(), name, bytes);
    let pixels: Vec<u8> = (0..16).collect();
    let options = IdxOptions {
        augment: Augment { crop: Some(Crop::Cut([2, 2])), ..Augment::default() },
        normalise: KEEP,
        ..IdxOptions::new(at("i", &idx(&[1, 4, 4], &pixels)), at("l", &idx(&[1], &[0])))
    };
    let opened = open(&Source::Idx(options)).unwrap();
    assert_eq!(opened.train.spec().input, InputSpec::Values { shape: vec![1, 2, 2] });
    assert_eq!(values_and_classes(&*opened.train).0, [5.0, 6.0, 9.0, 10.0]);
}
