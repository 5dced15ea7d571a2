//! The real Fashion-MNIST files, where the Debian package `dataset-fashion-mnist` is installed.

mod support;

use dtrain_data::{IdxOptions, InputSpec, Normalise, Source, class_distribution, open};
use std::path::Path;
use support::values_and_classes;

const FOLDER: &str = "/usr/share/datasets/fashion-mnist";

#[test]
fn fashion_mnist_is_read_packed_and_mapped_alike() {
    if !Path::new(FOLDER).is_dir() {
        println!("skipped: {FOLDER} is not there (package dataset-fashion-mnist)");
        return;
    }
    let file = |name: &str| Path::new(FOLDER).join(format!("{name}.gz"));
    let packed = IdxOptions {
        val: Some((file("t10k-images-idx3-ubyte"), file("t10k-labels-idx1-ubyte"))),
        normalise: Normalise::Scale(1.0),
        ..IdxOptions::new(file("train-images-idx3-ubyte"), file("train-labels-idx1-ubyte"))
    };
    let opened = open(&Source::Idx(packed.clone())).unwrap();
    let val = opened.val.unwrap();
    assert_eq!((opened.train.len(), val.len()), (60_000, 10_000));
    assert_eq!(opened.train.spec().input, InputSpec::Values { shape: vec![1, 28, 28] });
    assert_eq!(class_distribution(&*opened.train).unwrap().unwrap().counts(), [6000; 10]);
    assert_eq!(class_distribution(&*val).unwrap().unwrap().counts(), [1000; 10]);

    // The test files unpacked take the other path, a mapping, and must give the same samples.
    let folder = tempfile::tempdir().unwrap();
    let unpack = |path: &Path| {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).unwrap();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut bytes).unwrap();
        support::file(folder.path(), path.file_stem().unwrap().to_str().unwrap(), bytes)
    };
    let (images, labels) = packed.val.unwrap();
    let plain =
        IdxOptions { normalise: Normalise::Scale(1.0), ..IdxOptions::new(unpack(&images), unpack(&labels)) };
    let mapped = open(&Source::Idx(plain)).unwrap().train;
    assert!(values_and_classes(&*mapped) == values_and_classes(&*val));
}
