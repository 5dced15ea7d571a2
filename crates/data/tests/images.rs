//! Folders of images, judged by their pixels: order, classes, size, orientation, what is broken.

mod support;

use dtrain_data::{
    Augment, Broken, Colours, DataError, Dataset, ImageFiles, ImagesOptions, InputSpec, Normalise, Opened,
    PictureForm, Source, ValSplit, open,
};
use image::{ImageFormat, Rgb, RgbImage};
use std::fs;
use std::path::Path;
use support::values_and_classes;

const FORM: PictureForm = PictureForm { height: 4, width: 4, colours: Colours::Rgb };

fn options(path: &Path) -> ImagesOptions {
    ImagesOptions {
        path: path.to_owned(),
        val_path: None,
        val_split: ValSplit::default(),
        group: None,
        form: FORM,
        broken: Broken::Refuse,
        cache: 1 << 20,
        augment: Augment::default(),
        normalise: Normalise::Keep,
    }
}

fn opened(options: ImagesOptions) -> Opened {
    open(&Source::Images(options)).expect("the folder is as it should be")
}

fn refused(options: ImagesOptions) -> DataError {
    open(&Source::Images(options)).expect_err("something is wrong with the folder")
}

/// Writes an image of one colour.
fn plain(path: &Path, colour: [u8; 3], [height, width]: [u32; 2]) {
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
    RgbImage::from_pixel(width, height, Rgb(colour)).save(path).expect("an image");
}

/// The pixels of a sample, plane after plane, and its class.
fn sample(data: &dyn Dataset, index: u64) -> (Vec<f32>, u32) {
    let (values, classes) = values_and_classes(data);
    let width = values.len() / classes.len();
    (values[index as usize * width..][..width].to_vec(), classes[index as usize])
}

/// A JPEG of one row, white on the left and black on the right, whose EXIF says how it is to be turned.
fn turned(path: &Path, orientation: u8) {
    let mut bytes = std::io::Cursor::new(Vec::new());
    let half = |x, _| if x < 8 { Rgb([255; 3]) } else { Rgb([0; 3]) };
    RgbImage::from_fn(16, 16, half).write_to(&mut bytes, ImageFormat::Jpeg).expect("a JPEG");
    let mut bytes = bytes.into_inner();
    let tiff: Vec<u8> =
        [&b"II*\0\x08\0\0\0"[..], &[1, 0, 0x12, 0x01, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0]]
            .concat();
    let length = (2 + 6 + tiff.len()) as u16;
    let segment = [&[0xff, 0xe1][..], &length.to_be_bytes(), b"Exif\0\0", &tiff].concat();
    bytes.splice(2..2, segment);
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
    fs::write(path, bytes).expect("a file");
}

#[test]
fn classes_and_samples_come_in_the_order_of_their_names_with_the_pixels_of_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    plain(&path.join("b/2.png"), [1, 2, 3], [4, 4]);
    plain(&path.join("b/1.webp"), [40, 50, 60], [4, 4]);
    plain(&path.join("a/deep/x.png"), [7, 8, 9], [4, 4]);
    plain(&path.join("a/.hidden.png"), [0, 0, 0], [4, 4]);
    fs::write(path.join("a/notes.txt"), "no image").unwrap();
    // A PNG whatever its name says.
    plain(&path.join("c\n/real.png"), [10, 20, 30], [4, 4]);
    fs::rename(path.join("c\n/real.png"), path.join("c\n/lies.JPG")).unwrap();
    let all = opened(ImagesOptions { val_split: ValSplit::default(), ..options(path) });
    assert_eq!(all.class_names, ["a", "b", "c\n"]);
    assert_eq!(all.train.len(), 4);
    assert_eq!(all.train.spec().input, InputSpec::Values { shape: vec![3, 4, 4] });
    for (index, (colour, class)) in
        [([7, 8, 9], 0), ([40, 50, 60], 1), ([1, 2, 3], 1), ([10, 20, 30], 2)].into_iter().enumerate()
    {
        let (pixels, found) = sample(&*all.train, index as u64);
        assert_eq!(found, class);
        for (plane, value) in pixels.chunks(16).zip(colour) {
            assert!(plane.iter().all(|pixel| *pixel == value as f32), "{index}: {pixels:?}");
        }
    }
    let gray = PictureForm { colours: Colours::Gray, ..FORM };
    let gray = opened(ImagesOptions { form: gray, ..options(path) });
    assert_eq!(gray.train.spec().input, InputSpec::Values { shape: vec![1, 4, 4] });
}

#[test]
fn an_image_is_scaled_to_its_shorter_side_cut_in_the_middle_and_turned_as_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    // Three squares side by side, of which the middle one is seen.
    fs::create_dir_all(path.join("a")).unwrap();
    let third = |x, _| {
        Rgb([if x < 8 {
            0
        } else if x < 16 {
            100
        } else {
            200
        }; 3])
    };
    RgbImage::from_fn(24, 8, third).save(path.join("a/1.png")).unwrap();
    for (name, orientation) in [("2.jpg", 1), ("3.jpg", 3), ("4.jpg", 6)] {
        turned(&path.join("a").join(name), orientation);
    }
    let opened = opened(options(path));
    let middle = sample(&*opened.train, 0).0;
    assert!(middle.iter().all(|pixel| (*pixel - 100.0).abs() < 30.0), "{middle:?}");
    assert!(middle[5] == 100.0 && middle[6] == 100.0);
    // Corners: top left and bottom right of the red plane.
    let corners = |index| {
        let pixels = sample(&*opened.train, index).0;
        [pixels[0], pixels[3], pixels[12]].map(|pixel| pixel > 127.0)
    };
    assert_eq!(corners(1), [true, false, true], "as it lies: white is left");
    assert_eq!(corners(2), [false, true, false], "turned half round: white is right");
    assert_eq!(corners(3), [true, true, false], "turned a quarter to the right: white is above");
}

#[test]
fn what_is_kept_changes_no_pixel_and_statistics_are_those_of_the_training_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for at in 0..30u8 {
        plain(&path.join(format!("train/{}/{at:02}.png", at % 3)), [at, 2 * at, 255 - at], [5, 6]);
    }
    plain(&path.join("val/1/x.png"), [200, 200, 200], [5, 6]);
    let values = |cache| {
        let opened = opened(ImagesOptions { cache, normalise: Normalise::Standardise, ..options(path) });
        let twice = [(); 2].map(|()| values_and_classes(&*opened.train));
        assert_eq!(twice[0], twice[1]);
        assert_eq!((opened.train.len(), opened.val.as_ref().map(|val| val.len())), (30, Some(1)));
        twice[0].clone()
    };
    let all = values(1 << 20);
    assert_eq!(values(0), all);
    assert_eq!(values(100), all, "room for two");
    let red: Vec<f32> = all.0.chunks(48).flat_map(|sample| sample[..16].to_vec()).collect();
    let mean = red.iter().sum::<f32>() / red.len() as f32;
    let square = red.iter().map(|x| x * x).sum::<f32>() / red.len() as f32;
    assert!(mean.abs() < 1e-5 && (square - 1.0).abs() < 1e-4, "{mean} {square}");
}

#[test]
fn a_broken_file_is_named_or_left_out_and_one_that_asks_for_too_much_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    plain(&path.join("a/1.png"), [1, 1, 1], [64, 64]);
    plain(&path.join("b/1.png"), [2, 2, 2], [64, 64]);
    let whole = fs::read(path.join("a/1.png")).unwrap();
    fs::write(path.join("a/2.png"), &whole[..whole.len() / 2]).unwrap();
    fs::write(path.join("a/3.jpg"), "no image at all").unwrap();
    fs::write(path.join("b/4.png"), "").unwrap();
    // A header that says 60 000 by 60 000 pixels.
    let mut bomb = whole.clone();
    bomb[16..20].copy_from_slice(&60_000u32.to_be_bytes());
    bomb[20..24].copy_from_slice(&60_000u32.to_be_bytes());
    fs::write(path.join("b/5.png"), bomb).unwrap();
    let opened = opened(ImagesOptions { broken: Broken::Skip, ..options(path) });
    assert_eq!(opened.train.len(), 2);
    for name in ["a/2.png", "a/3.jpg", "b/4.png", "b/5.png"] {
        let alone = tempfile::tempdir().unwrap();
        fs::create_dir_all(alone.path().join("a")).unwrap();
        let file = alone.path().join("a").join(name.replace('/', "-"));
        fs::copy(path.join(name), &file).unwrap();
        let error = refused(ImagesOptions { normalise: Normalise::Standardise, ..options(alone.path()) });
        assert!(error.to_string().starts_with(&*file.to_string_lossy()), "{error}");
        assert!(error.hint().contains("data.broken=skip"), "{}", error.hint());
    }
}

#[test]
fn a_folder_that_is_none_of_images_is_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let says = |options, words: &str| {
        let error = refused(options).to_string();
        assert!(error.contains(words), "{error}");
    };
    says(options(&path.join("nowhere")), "nowhere does not exist");
    says(options(path), "has no folders");
    plain(&path.join("a/1.png"), [1, 1, 1], [4, 4]);
    fs::create_dir(path.join("empty")).unwrap();
    says(options(path), "empty has no images");
    fs::remove_dir(path.join("empty")).unwrap();
    let val = tempfile::tempdir().unwrap();
    plain(&val.path().join("b/1.png"), [1, 1, 1], [4, 4]);
    let with_val = ImagesOptions { val_path: Some(val.path().to_owned()), ..options(path) };
    says(with_val, "b is no class of the training images");
    let preparation = opened(options(path)).preparation.expect("there is one");
    assert!(ImageFiles::open(&path.join("x.csv"), &preparation).unwrap().is_none());
    assert_eq!(ImageFiles::open(path, &preparation).unwrap().expect("a folder").files().len(), 1);
    assert!(ImageFiles::labelled(val.path(), &preparation).is_err());
}
