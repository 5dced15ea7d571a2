//! A clip becomes the frames in its middle, channel after channel and frame after frame; all of them are varied alike.

mod support;

use dtrain_data::{
    Augment, Broken, ClipForm, ClipsOptions, Colours, Feed, ImageFiles, Loader, LoaderPlan, Normalise,
    PictureForm, Source, ValSplit, open,
};
use dtrain_types::{BatchPlan, MicroRange, Seed, Step};
use image::{GrayImage, Luma, RgbImage};
use std::fs;
use std::path::Path;
use support::{npy, refused, values_and_classes};

fn options(path: &Path) -> ClipsOptions {
    ClipsOptions {
        path: path.to_owned(),
        val_path: None,
        val_split: ValSplit::default(),
        group: None,
        form: ClipForm {
            frames: 3,
            stride: 4,
            picture: PictureForm { height: 2, width: 2, colours: Colours::Gray },
        },
        broken: Broken::Refuse,
        cache: 0,
        augment: Augment::default(),
        normalise: Normalise::Keep,
    }
}

/// Class `a` has a folder of twelve frames that are as bright as their number, class `b` an array of eleven in colours.
fn clips(path: &Path) {
    fs::create_dir_all(path.join("a/patient/walk")).unwrap();
    for number in 1..=12u8 {
        let frame = GrayImage::from_pixel(2, 2, Luma([10 * number]));
        frame.save(path.join(format!("a/patient/walk/f{number}.png"))).unwrap();
    }
    fs::create_dir_all(path.join("b")).unwrap();
    let colours: Vec<u8> = (0..11 * 4).flat_map(|pixel| [pixel, 100, 200]).collect();
    fs::write(path.join("b/clip.npy"), npy("|u1", &[11, 2, 2, 3], &colours)).unwrap();
}

#[test]
fn the_frames_in_the_middle_are_taken_by_their_numbers_channel_after_channel() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path());
    let opened = open(&Source::Clips(options(folder.path()))).unwrap();
    assert_eq!(opened.class_names, ["a", "b"]);
    let (values, classes) = values_and_classes(opened.train.as_ref());
    assert_eq!(classes, [0, 1]);
    // Twelve frames, nine from the first that is taken to the last: f2, f6 and f10.
    let bright: Vec<f32> = [20.0, 60.0, 100.0].into_iter().flat_map(|value| [value; 4]).collect();
    assert_eq!(values[..12], bright);
    let mut coloured = options(folder.path());
    coloured.form.picture.colours = Colours::Rgb;
    let opened = open(&Source::Clips(coloured)).unwrap();
    let (values, _) = values_and_classes(opened.train.as_ref());
    let of_array = &values[36..];
    let red: Vec<f32> = [4.0, 20.0, 36.0]
        .into_iter()
        .flat_map(|first| [first, first + 1.0, first + 2.0, first + 3.0])
        .collect();
    assert_eq!(of_array[..12], red);
    assert!(
        of_array[12..24].iter().all(|green| *green == 100.0)
            && of_array[24..].iter().all(|blue| *blue == 200.0)
    );
    // What is predicted is what was trained on.
    let preparation = opened.preparation.unwrap();
    let files = ImageFiles::open(&folder.path().join("b/clip.npy"), &preparation).unwrap().unwrap();
    assert_eq!(files.read(0..1, &preparation).unwrap(), of_array);
    let all = ImageFiles::open(folder.path(), &preparation).unwrap().unwrap();
    assert_eq!(all.files(), [folder.path().join("a/patient/walk"), folder.path().join("b/clip.npy")]);
}

#[test]
fn all_frames_of_a_clip_are_flipped_and_shifted_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for class in ["a", "b"] {
        fs::create_dir_all(path.join(class)).unwrap();
        let one: Vec<u8> = (0..36).map(|place| place + 1).collect();
        fs::write(path.join(class).join("still.npy"), npy("|u1", &[3, 6, 6], &one.repeat(3))).unwrap();
    }
    let mut varied = ClipsOptions { augment: "flip+shift:2+crop:5".parse().unwrap(), ..options(path) };
    (varied.form.stride, varied.form.picture.height, varied.form.picture.width) = (1, 6, 6);
    let train = open(&Source::Clips(varied)).unwrap().train;
    let plan = BatchPlan::new(Seed(7), 2, 2, 2).unwrap();
    let feed = Feed::new(train, plan, Seed(7)).unwrap();
    let share = LoaderPlan { range: MicroRange { lo: 0, hi: 1 }, from: Step(1), until: Some(Step(20)) };
    let mut loader = Loader::start(feed, share, 0).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        for clip in batch.inputs().f32().chunks(3 * 25) {
            assert!(clip[..25] == clip[25..50] && clip[..25] == clip[50..], "{clip:?}");
            seen.insert(clip[..25].iter().map(|value| *value as u32).collect::<Vec<_>>());
        }
    }
    assert!(seen.len() > 10, "{} of them", seen.len());
}

#[test]
fn what_is_no_clip_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    clips(path);
    let says = |words: &str| {
        let said =
            refused(Source::Clips(ClipsOptions { normalise: Normalise::Standardise, ..options(path) }));
        assert!(said.contains(words), "{said:?} lacks {words:?}");
    };
    fs::write(path.join("b/short.npy"), npy("|u1", &[8, 2, 2], &[0; 32])).unwrap();
    says("b/short.npy has 8 frames, and 9 are needed");
    let skipping = ClipsOptions { broken: Broken::Skip, ..options(path) };
    assert_eq!(open(&Source::Clips(skipping)).unwrap().train.len(), 2);
    fs::write(path.join("b/short.npy"), npy("|u1", &[9, 2, 2, 4], &[0; 144])).unwrap();
    says("b/short.npy has shape [9, 2, 2, 4], and a clip is [frames, height, width]");
    fs::write(path.join("b/short.npy"), npy("<f4", &[9, 1, 1], &[0; 36])).unwrap();
    says("b/short.npy holds elements of type 4 bytes each, expected uint8");
    fs::write(path.join("b/short.npy"), npy("|u1", &[9, 2, 2], &[0; 35])).unwrap();
    says("b/short.npy holds");
    fs::remove_file(path.join("b/short.npy")).unwrap();
    fs::create_dir(path.join("c")).unwrap();
    RgbImage::new(2, 2).save(path.join("c/alone.png")).unwrap();
    says("c has no clips");
    fs::write(path.join("c/film.MP4"), "film").unwrap();
    says("c/film.MP4 is a video");
}
