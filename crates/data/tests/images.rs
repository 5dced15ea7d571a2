//! Folders of images, judged by their pixels: order, classes, size, orientation, what is broken.

mod support;

use dtrain_data::{
    Augment, Broken, Colours, Column, DataError, Dataset, FileGroup, HeldOut, ImageFiles, ImagesOptions,
    InputSpec, LabelTable, Normalise, Opened, PictureForm, Source, ValSplit, open,
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
        labels: None,
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

/// A folder with images that are in no folder of a class, and a table of names and labels with this text.
fn beside_table(text: &str) -> (tempfile::TempDir, ImagesOptions) {
    let folder = tempfile::tempdir().unwrap();
    for (at, name) in (0u8..).zip(["s1/a.png", "s1/b.jpg", "s2/c.webp", "s3/d.png"]) {
        plain(&folder.path().join(name), [10 * at; 3], [4, 4]);
    }
    let path = folder.path().join("labels.csv");
    fs::write(&path, text).unwrap();
    let labels =
        Some(LabelTable { path, val: None, file: Column::Index(0), label: Column::Last, group: None });
    let options = ImagesOptions { labels, ..options(folder.path()) };
    (folder, options)
}

#[test]
fn a_table_says_of_which_class_files_are_with_or_without_a_header_and_their_endings() {
    for text in [
        "s3/d.png,dog\ns1/a.png,cat\ns2/c.webp,dog\n",
        "id;label\ns3/d;dog\n\ns1/a.png;cat\n\"s2/c\";dog",
        "file,label\ns3/d.png,dog\ns1/a.png,cat\ns2/c.webp,dog\n",
    ] {
        let (_folder, options) = beside_table(text);
        let opened = opened(options);
        assert_eq!(opened.class_names, ["cat", "dog"], "{text}");
        // In the order of the table; what it does not name is no sample.
        let seen: Vec<_> = (0..opened.train.len()).map(|at| sample(&*opened.train, at)).collect();
        assert_eq!(seen.iter().map(|(_, class)| *class).collect::<Vec<_>>(), [1, 0, 1], "{text}");
        assert_eq!(seen.iter().map(|(pixels, _)| pixels[0]).collect::<Vec<_>>(), [30.0, 0.0, 20.0], "{text}");
    }
}

#[test]
fn groups_and_held_out_files_of_a_table_are_those_of_its_columns_folders_and_second_table() {
    let text = "kind,who,file\ncat,x,s1/a.png\ndog,y,s1/b.jpg\ncat,y,s2/c.webp\ndog,x,s3/d.png\n";
    let (folder, mut options) = beside_table(text);
    let table = options.labels.as_mut().unwrap();
    (table.file, table.label) = (Column::Name("file".into()), Column::Name("kind".into()));
    let held_out = |options: &ImagesOptions, group: &str| {
        let held_out = HeldOut::Groups(vec![group.to_owned()]);
        let opened =
            opened(ImagesOptions { val_split: ValSplit { fraction: 0.1, held_out }, ..options.clone() });
        let val = opened.val.expect("a group is held out");
        (0..val.len()).map(|at| sample(&*val, at).0[0]).collect::<Vec<_>>()
    };
    let by_folder = ImagesOptions { group: Some(FileGroup::Folder), ..options.clone() };
    assert_eq!(held_out(&by_folder, "s1"), [0.0, 10.0]);
    let by_name = ImagesOptions { group: FileGroup::pattern("GROUP.*"), ..options.clone() };
    assert_eq!(held_out(&by_name, "c"), [20.0]);
    options.labels.as_mut().unwrap().group = Some(Column::Name("who".into()));
    assert_eq!(held_out(&options, "y"), [10.0, 20.0]);
    // A file that is left out takes its label and its group with it.
    fs::write(folder.path().join("s1/a.png"), "no image").unwrap();
    let whole = ImagesOptions { broken: Broken::Skip, ..options.clone() };
    assert_eq!(held_out(&whole, "x"), [30.0]);

    let second = folder.path().join("second.csv");
    fs::write(&second, "kind,who,file\ndog,z,s3/d.png\n").unwrap();
    options.labels.as_mut().unwrap().val = Some(second.clone());
    fs::write(folder.path().join("labels.csv"), "kind,who,file\ncat,x,s2/c.webp\ndog,y,s1/b.jpg\n").unwrap();
    let both = opened(options.clone());
    let val = both.val.expect("a table of its own");
    assert_eq!((both.train.len(), val.len(), sample(&*val, 0).1), (2, 1, 1));
    fs::write(&second, "kind,who,file\nbird,z,s3/d.png\n").unwrap();
    let error = refused(options);
    assert!(
        error.to_string().ends_with("second.csv line 2: \"bird\" is the label of no training image"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_with_a_table_of_labels_is_named_by_its_line() {
    for (text, says) in [
        ("s1/a.png,cat\nnowhere.png,dog\n", "labels.csv line 2: \"nowhere.png\" is not in "),
        ("nowhere.png,cat\n", "line 1: \"nowhere.png\" is not in "),
        ("s1/a.png,cat\ns1/b.jpg,dog\ns1/a,dog\n", "line 3: \"s1/a\" has a label in line 1 already"),
        ("name,label\ns1/a.png,\n", "line 2, column \"label\": the label is missing"),
        ("s1/a.png,cat\n,dog\n", "line 2, column 1: the name is missing"),
        ("s1/a.png,cat\ns1/b.jpg\n", "line 2: 1 column, expected 2"),
        ("s1/a.png\n", "is to be the name and the label"),
        ("name,label\n", "holds no sample"),
        ("", "holds no sample"),
    ] {
        let (_folder, options) = beside_table(text);
        let error = refused(options);
        assert!(error.to_string().contains(says), "{text:?}: {error}");
        assert!(error.hint().len() > 10);
    }
    for (column, says) in [
        (Column::Name("breed".into()), "has no column \"breed\", only name, label"),
        (Column::Index(2), "has no column 2, only 2 columns"),
    ] {
        let (_folder, mut options) = beside_table("name,label\ns1/a.png,cat\n");
        let labels = options.labels.as_mut().unwrap();
        (labels.file, labels.label) = (Column::Name("name".into()), column);
        let error = refused(options).to_string();
        assert!(error.contains(says), "{error}");
    }
    let (folder, mut options) = beside_table("s1/a.png,cat\n");
    options.labels.as_mut().unwrap().path = folder.path().join("gone.csv");
    assert!(refused(options).to_string().ends_with("gone.csv does not exist"));
}
