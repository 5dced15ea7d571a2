//! Variations of training pictures, judged by their pixels: each does what it says, stays in the range of values, and has the same bits
//! however many threads read, and in whatever order.

mod support;

use dtrain_data::{
    Augment, Batch, Broken, ClipForm, ClipsOptions, Colours, CsvOptions, CsvTarget, DigitsOptions, Feed,
    IdxOptions, ImageFiles, ImagesOptions, InputArray, InputSpec, Loader, LoaderPlan, Normalise, NpyOptions,
    NpyTarget, Opened, PictureForm, Source, ValSplit, open,
};
use dtrain_types::{BatchPlan, MicroBatch, MicroRange, Seed, Step};
use image::{Rgb, RgbImage};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use support::{bits, file, idx, npy, values_and_classes};

/// Each alone, and several together.
const ALL: [&str; 9] = [
    "flip",
    "flip+shift:2+crop:6",
    "resized-crop:6",
    "resized-crop:12x9",
    "jitter",
    "erase",
    "rand-augment",
    "rand-augment:5,25",
    "flip+resized-crop:7+rand-augment+jitter+erase",
];

/// What mixes samples with each other.
const MIXES: [&str; 3] = ["mixup", "flip+cutmix:0.5", "mixup:1+cutmix"];

fn digits(augment: &str, normalise: Normalise) -> Opened {
    let augment = augment.parse().expect("it is one");
    open(&Source::Digits(DigitsOptions { augment, normalise })).expect("digits")
}

/// Bytes `0, 7, 14, ...` as pictures.
fn pictures(folder: &Path, [rows, channels, height, width]: [usize; 4], augment: &str) -> Opened {
    let count = rows * channels * height * width;
    let bytes: Vec<u8> = (0..count).map(|at| (at * 7 % 256) as u8).collect();
    let shape = [rows, channels, height, width];
    let labels: Vec<u8> = (0..rows).map(|row| row as u8 % 2).collect();
    let options = NpyOptions {
        target: NpyTarget::Class { classes: Some(2) },
        augment: augment.parse().expect("it is one"),
        normalise: Normalise::Keep,
        val_split: ValSplit { fraction: 0.0, ..ValSplit::default() },
        ..NpyOptions::new(
            file(folder, "x.npy", npy("|u1", &shape, &bytes)),
            file(folder, "y.npy", npy("|u1", &[rows], &labels)),
        )
    };
    open(&Source::Npy(options)).expect("an array")
}

fn feed(opened: &Opened, micro_batch: u32) -> Feed {
    let plan = BatchPlan::new(Seed(3), opened.train.len(), 4 * micro_batch, micro_batch).expect("a plan");
    Feed::new(opened.train.clone(), plan, Seed(3)).expect("a feed")
}

/// Every sample of some steps as the training sees it.
fn varied(opened: &Opened, steps: u64) -> Vec<Vec<f32>> {
    let feed = feed(opened, 1);
    let mut batch = feed.batch();
    let mut seen = Vec::new();
    for step in (1..=steps).map(Step) {
        for micro_batch in 0..feed.plan().step(step).micro_batches {
            feed.read_micro_batch(step, MicroBatch(micro_batch), &mut batch).expect("it is read");
            seen.push(batch.inputs().f32().to_vec());
        }
    }
    seen
}

/// The bits of what is trained on.
fn targets(batch: &Batch) -> Vec<u32> {
    batch.mixed_classes().map_or_else(|| bits(batch.targets()), <[u32]>::to_vec)
}

fn told(batch: &Batch) -> (Step, MicroBatch, Vec<u32>, Vec<u32>) {
    (batch.step(), batch.micro_batch(), bits(batch.inputs()), targets(batch))
}

fn the_bits_do_not_depend_on_readers(opened: &Opened, about: &str) {
    let feed = feed(opened, 4);
    let share =
        LoaderPlan { range: MicroRange { lo: 0, hi: 4 }, every: 1, from: Step(1), until: Some(Step(4)) };
    let read = |workers| {
        let mut loader = Loader::start(feed.clone(), share, workers).expect("a loader");
        std::iter::from_fn(|| loader.next_batch().expect("it is read").map(|batch| told(&batch)))
            .collect::<Vec<_>>()
    };
    let inline = read(0);
    assert!(inline.len() > 8);
    for workers in [1, 2, 4] {
        assert!(read(workers) == inline, "{about}: {workers} workers");
    }
    let mut batch = feed.batch();
    for expected in inline.iter().rev() {
        feed.read_micro_batch(expected.0, expected.1, &mut batch).expect("it is read");
        assert!(told(&batch) == *expected, "{about}: backwards");
    }
}

/// Pictures in colours that say nothing, as files.
fn photos(folder: &Path) -> ImagesOptions {
    for number in 0..16u32 {
        let path = folder.join(["a", "b"][number as usize % 2]);
        fs::create_dir_all(&path).expect("a folder");
        let colour = |x: u32, y: u32| Rgb([x * 20 + number, y * 20, x * y * number].map(|value| value as u8));
        RgbImage::from_fn(12, 10, colour).save(path.join(format!("{number:02}.png"))).expect("an image");
    }
    ImagesOptions {
        path: folder.to_owned(),
        val_path: None,
        labels: None,
        val_split: ValSplit { fraction: 0.2, ..ValSplit::default() },
        group: None,
        form: PictureForm { height: 10, width: 10, colours: Colours::Rgb },
        broken: Broken::Refuse,
        cache: 1 << 20,
        augment: Augment::default(),
        normalise: Normalise::Scale(1.0 / 255.0),
    }
}

#[test]
fn every_augmentation_has_the_same_bits_for_any_number_of_readers_and_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let photos = photos(folder.path());
    for augment in ALL.into_iter().chain(MIXES) {
        the_bits_do_not_depend_on_readers(&digits(augment, Normalise::Standardise), augment);
        let options = ImagesOptions { augment: augment.parse().unwrap(), ..photos.clone() };
        the_bits_do_not_depend_on_readers(&open(&Source::Images(options)).unwrap(), augment);
    }
}

/// FNV-1a.
fn digest(values: impl Iterator<Item = u32>) -> u64 {
    values
        .flat_map(u32::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn the_bits_of_every_augmentation_are_those_of_other_machines_and_versions() {
    // The first two as they were before there were any others.
    let expected: [(&str, u64); 9] = [
        ("flip", 0x930a_530a_1a82_8f42),
        ("flip+shift:2+crop:6", 0x2f2a_9549_7ee4_0e59),
        ("resized-crop:6", 0x5008_a4f7_ff49_33a1),
        ("resized-crop:12x9", 0x97ca_d42d_edde_9c70),
        ("jitter", 0x1a93_66d2_44b1_a129),
        ("erase", 0x45e2_e875_e814_c047),
        ("rand-augment", 0x48d4_a1ce_c2d9_e3a6),
        ("rand-augment:5,25", 0x52f4_8c97_9bdf_30e6),
        ("flip+resized-crop:7+rand-augment+jitter+erase", 0x1911_fbe1_e9c7_1761),
    ];
    let folder = tempfile::tempdir().unwrap();
    let found = ALL.map(|augment| {
        let grey = varied(&digits(augment, Normalise::Keep), 4);
        let colour = varied(&pictures(folder.path(), [16, 3, 20, 24], augment), 8);
        (augment, digest(grey.iter().chain(&colour).flatten().map(|value| value.to_bits())))
    });
    assert_eq!(found, expected);
}

#[test]
fn a_resized_crop_scales_parts_for_training_and_the_middle_for_validation() {
    let folder = tempfile::tempdir().unwrap();
    // From left to right 0 to 70, in all rows; the picture is twice as wide as high.
    let pixels: Vec<u8> = (0..4 * 8).map(|at| 10 * (at % 8)).collect();
    let options = IdxOptions {
        augment: "flip+resized-crop:4".parse().unwrap(),
        normalise: Normalise::Keep,
        ..IdxOptions::new(
            file(folder.path(), "x", idx(&[2, 4, 8], &pixels.repeat(2))),
            file(folder.path(), "y", idx(&[2], &[0, 1])),
        )
    };
    let opened = open(&Source::Idx(options)).unwrap();
    assert_eq!(opened.train.spec().input, InputSpec::Values { shape: vec![1, 4, 4] });
    assert_eq!(
        values_and_classes(&*opened.train).0[..4],
        [20.0, 30.0, 40.0, 50.0],
        "without a key the middle"
    );
    let seen = varied(&opened, 200);
    for picture in &seen {
        let rows: Vec<&[f32]> = picture.chunks(4).collect();
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
        assert!(rows.iter().all(|row| near(row, rows[0])), "all rows are alike: {picture:?}");
        let up = rows[0].is_sorted();
        assert!(up || rows[0].iter().rev().is_sorted(), "from left to right, or mirrored: {picture:?}");
    }
    let count = |is: fn(&[f32]) -> bool| seen.iter().filter(|picture| is(&picture[..4])).count();
    assert!(count(|row| row[0] > row[3]) > 50 && count(|row| row[0] < row[3]) > 50, "mirrored or not");
    assert!(count(|row| row.iter().all(|value| *value < 35.0)) > 5, "of the left half alone");
    assert!(count(|row| row.iter().all(|value| *value > 35.0)) > 5, "of the right half alone");
}

#[test]
fn a_jitter_changes_all_pixels_alike_and_erasing_makes_a_rectangle_zero() {
    let folder = tempfile::tempdir().unwrap();
    let before = pictures(folder.path(), [1, 1, 5, 5], "none");
    let before = values_and_classes(&*before.train).0;
    let mut factors = Vec::new();
    for picture in varied(&pictures(folder.path(), [1, 1, 5, 5], "jitter:0.5,0,0"), 50) {
        let factor = picture[1] / before[1];
        assert!(
            picture.iter().zip(&before).all(|(new, old)| (new - old * factor).abs() < 1e-3),
            "{picture:?}"
        );
        factors.push(factor);
    }
    assert!(factors.iter().all(|factor| (0.499..=1.501).contains(factor)));
    assert!(factors.iter().any(|factor| *factor < 0.7) && factors.iter().any(|factor| *factor > 1.3));
    let still = varied(&pictures(folder.path(), [1, 1, 5, 5], "jitter:0,0,3"), 5);
    assert!(still.iter().all(|picture| *picture == before), "one channel has no saturation");

    let erased = varied(&pictures(folder.path(), [1, 1, 5, 5], "erase"), 400);
    let changed = erased.iter().filter(|picture| **picture != before).count();
    assert!((50..150).contains(&changed), "{changed}");
    for picture in &erased {
        assert!(picture.iter().zip(&before).all(|(new, old)| new == old || *new == 0.0));
    }
}

/// Each micro-batch of some steps as it is, then as it is mixed: inputs, and targets by sample.
fn mixed_beside_plain(folder: &Path, rows: usize, augment: &str) -> Vec<[(Vec<f32>, Vec<u32>); 2]> {
    let shape = [rows, 3, 6, 8];
    let (plain, mixed) = (pictures(folder, shape, "none"), pictures(folder, shape, augment));
    let (plain, mixed) = (feed(&plain, 4), feed(&mixed, 4));
    let mut seen = Vec::new();
    for (step, micro_batch) in (1..=60).flat_map(|step| (0..4).map(move |m| (Step(step), MicroBatch(m)))) {
        seen.push([&plain, &mixed].map(|feed| {
            let mut batch = feed.batch();
            feed.read_micro_batch(step, micro_batch, &mut batch).expect("it is read");
            (batch.inputs().f32().to_vec(), targets(&batch))
        }));
    }
    seen
}

#[test]
fn a_sample_is_mixed_with_the_one_before_it_and_so_is_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let (plane, len) = (6 * 8, 3 * 6 * 8);
    for augment in MIXES.map(|augment| augment.trim_start_matches("flip+")) {
        let (mut parts, mut sums, mut shares) = (0, 0, Vec::new());
        for [(plain, classes), (mixed, targets)] in mixed_beside_plain(folder.path(), 16, augment) {
            let rows = classes.len();
            let share = f32::from_bits(targets[2]);
            for row in 0..rows {
                let before = (row + rows - 1) % rows;
                assert_eq!(targets[3 * row..][..3], [classes[row], classes[before], share.to_bits()]);
                let of = |values: &[f32], row: usize| values[row * len..][..len].to_vec();
                let (own, other, new) = (of(&plain, row), of(&plain, before), of(&mixed, row));
                if !(0.01..0.99).contains(&share) {
                    // All or nothing: which of the two it is cannot be told.
                    continue;
                }
                let taken: Vec<bool> = (0..len).map(|i| new[i] == other[i] && new[i] != own[i]).collect();
                if (0..len).all(|i| new[i] == own[i] || new[i] == other[i]) {
                    parts += 1;
                    // The same part of each plane, as large as the share says.
                    let equal = (0..len).filter(|i| own[*i] == other[*i]).count();
                    let count = taken.iter().filter(|taken| **taken).count();
                    let wanted = ((1.0 - share) * plane as f32).round() as usize * 3;
                    assert!((wanted.saturating_sub(equal)..=wanted).contains(&count), "{count} of {wanted}");
                } else {
                    sums += 1;
                    let sum = |i: usize| share * own[i] + (1.0 - share) * other[i];
                    assert!((0..len).all(|i| (new[i] - sum(i)).abs() < 1e-3), "{share}");
                }
            }
            shares.push(share);
        }
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{augment}");
        let near = |share: &&f32| (0.2..0.8).contains(*share);
        let (near, all) = (shares.iter().filter(near).count(), shares.len());
        match augment {
            // Of a small parameter most shares are near 0 or 1.
            "mixup" => assert!(parts == 0 && (all / 20..all / 3).contains(&near), "{near} of {all}"),
            "cutmix:0.5" => assert!(sums == 0 && parts > 0, "{sums}"),
            _ => assert!(sums > all && parts > all && near > all / 3, "{sums}, {parts}, {near} of {all}"),
        }
    }
}

#[test]
fn numbers_are_mixed_as_their_pictures_are_and_a_sample_alone_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = (0..16).flat_map(|row| [row as u8 * 10; 4]).collect();
    let values: Vec<u8> = (0..16).flat_map(|row| (row as f32 * 10.0).to_le_bytes()).collect();
    let options = NpyOptions {
        target: NpyTarget::Value,
        augment: "mixup:1".parse().unwrap(),
        normalise: Normalise::Keep,
        val_split: ValSplit { fraction: 0.0, ..ValSplit::default() },
        ..NpyOptions::new(
            file(folder.path(), "x.npy", npy("|u1", &[16, 1, 2, 2], &pixels)),
            file(folder.path(), "y.npy", npy("<f4", &[16], &values)),
        )
    };
    let opened = open(&Source::Npy(options)).unwrap();
    let scale = |micro_batch: u32| {
        let feed = feed(&opened, micro_batch);
        let mut batch = feed.batch();
        feed.read_micro_batch(Step(1), MicroBatch(0), &mut batch).expect("it is read");
        (batch.inputs().f32().iter().step_by(4).copied().collect::<Vec<_>>(), batch.targets().f32().to_vec())
    };
    let (pictures, targets) = scale(4);
    assert!(pictures.iter().any(|value| value % 10.0 != 0.0), "{pictures:?}");
    // Targets are standardised, which is linear, too.
    let slope = (targets[1] - targets[0]) / (pictures[1] - pictures[0]);
    for (picture, target) in pictures.iter().zip(&targets) {
        assert!((target - targets[0] - slope * (picture - pictures[0])).abs() < 1e-4);
    }
    assert!(scale(1).0.iter().all(|value| value % 10.0 == 0.0));
}

#[test]
fn all_frames_of_a_clip_are_varied_alike() {
    let folder = tempfile::tempdir().unwrap();
    for class in ["a", "b"] {
        fs::create_dir_all(folder.path().join(class)).unwrap();
        let frame: Vec<u8> = (0..8 * 8 * 3).map(|at| (at * 11 % 256) as u8).collect();
        let still = npy("|u1", &[3, 8, 8, 3], &frame.repeat(3));
        fs::write(folder.path().join(class).join("still.npy"), still).unwrap();
    }
    let ImagesOptions { val_path, val_split, group, broken, cache, normalise, .. } =
        photos(tempfile::tempdir().unwrap().path());
    for augment in ALL {
        let picture = PictureForm { height: 8, width: 8, colours: Colours::Rgb };
        let options = ClipsOptions {
            path: folder.path().to_owned(),
            val_path: val_path.clone(),
            val_split: ValSplit { fraction: 0.0, ..val_split.clone() },
            group: group.clone(),
            form: ClipForm { frames: 3, stride: 1, picture },
            broken,
            cache,
            augment: augment.parse().unwrap(),
            normalise,
        };
        let opened = open(&Source::Clips(options)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for clip in varied(&opened, 40) {
            for channel in clip.chunks(clip.len() / 3) {
                let frames: Vec<&[f32]> = channel.chunks(channel.len() / 3).collect();
                assert!(frames[0] == frames[1] && frames[0] == frames[2], "{augment}");
            }
            seen.insert(bits(dtrain_data::Elements::F32(&clip)));
        }
        assert!(seen.len() > 1, "{augment}");
    }
}

#[test]
fn what_is_predicted_is_cut_as_validation_is() {
    let folder = tempfile::tempdir().unwrap();
    let photos = photos(folder.path());
    let written = tempfile::tempdir().unwrap();
    for augment in ["none", "crop:6x7", "flip+resized-crop:6x7", "resized-crop:20+jitter"] {
        let augment: Augment = augment.parse().unwrap();
        let opened = open(&Source::Images(ImagesOptions { augment, ..photos.clone() })).unwrap();
        let preparation = opened.preparation.clone().expect("there is one");
        let files = ImageFiles::open(folder.path(), &preparation).unwrap().expect("a folder");
        let read = files.read(0..files.files().len(), &preparation).unwrap();
        let whole = ValSplit { fraction: 0.0, ..ValSplit::default() };
        let all =
            open(&Source::Images(ImagesOptions { augment, val_split: whole, ..photos.clone() })).unwrap();
        assert_eq!(read, values_and_classes(&*all.train).0, "{augment}");

        let opened = pictures(written.path(), [4, 3, 8, 9], &augment.to_string());
        let preparation = opened.preparation.clone().expect("there is one");
        let expected = values_and_classes(&*opened.train).0;
        let array = InputArray::open(&written.path().join("x.npy"), &preparation).unwrap().expect("an array");
        assert_eq!(array.read(0..4, &preparation), expected, "{augment}");
        // Those who have cut it themselves have the same.
        let InputSpec::Values { shape } = preparation.input.clone() else { panic!("no values") };
        let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
        let cut = file(written.path(), "cut.npy", npy("<f4", &[&[4], &shape[..]].concat(), &bytes));
        let array = InputArray::open(&cut, &preparation).unwrap().expect("an array");
        assert_eq!(array.read(0..4, &preparation), expected, "{augment}");
        let other = file(written.path(), "other.npy", npy("|u1", &[1, 3, 5, 5], &[0; 75]));
        assert!(InputArray::open(&other, &preparation).is_err());
    }
}

#[test]
fn rows_of_a_table_are_varied_and_predicted_by_their_shape() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..6).map(|row| format!("{row},1,2,3,4,5,6,7,{}\n", row % 2)).collect();
    let path = file(folder.path(), "table.csv", &text);
    let options = CsvOptions {
        shape: Some(vec![1, 2, 4]),
        header: Some(false),
        target: CsvTarget::Class { classes: None },
        augment: "resized-crop:3+rand-augment+jitter+erase".parse().unwrap(),
        val_split: ValSplit { fraction: 0.0, ..ValSplit::default() },
        ..CsvOptions::new(path)
    };
    let opened = open(&Source::Csv(options)).unwrap();
    assert_eq!(opened.train.spec().input_width(), 9);
    let preparation = opened.preparation.clone().expect("there is one");
    let ends = dtrain_data::RowEnds::new("0,1,2,3,4,5,6,7,0", None);
    let parser = dtrain_data::RowParser::new(&preparation, (Path::new("t"), 1), "0,1,2,3,4,5,6,7,0", ends);
    let mut rows = dtrain_data::CsvRows::default();
    parser.unwrap().parse(text.as_bytes(), 1, &mut rows).unwrap();
    assert_eq!(rows.values, values_and_classes(&*opened.train).0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_leaves_the_range_of_the_values(
        [channels, height, width] in [1usize..=4, 2usize..=9, 2usize..=9],
        crop in prop::option::of([1usize..=12, 1usize..=12]),
        (operations, magnitude) in (1u32..=6, 0u32..=30),
        jitter in [0.0f32..=10.0, 0.0f32..=10.0, 0.0f32..=10.0],
        values in prop::collection::vec(-3.0f32..=5.0, 4 * 4 * 9 * 9),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let values = &values[..4 * channels * height * width];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let crop = crop.map_or(String::new(), |[height, width]| format!("+resized-crop:{height}x{width}"));
        let [b, c, s] = jitter;
        let augment = format!("flip+erase+rand-augment:{operations},{magnitude}+jitter:{b},{c},{s}{crop}");
        let options = NpyOptions {
            target: NpyTarget::Class { classes: Some(2) },
            augment: augment.parse().unwrap(),
            normalise: Normalise::Keep,
            val_split: ValSplit { fraction: 0.0, ..ValSplit::default() },
            ..NpyOptions::new(
                file(folder.path(), "x.npy", npy("<f4", &[4, channels, height, width], &bytes)),
                file(folder.path(), "y.npy", npy("|u1", &[4], &[0, 1, 0, 1])),
            )
        };
        let opened = open(&Source::Npy(options)).unwrap();
        let low = values.iter().copied().fold(f32::MAX, f32::min);
        let high = values.iter().copied().fold(f32::MIN, f32::max);
        for picture in varied(&opened, 12) {
            prop_assert!(picture.iter().all(|value| (low..=high).contains(value)), "{picture:?}");
        }
    }
}
