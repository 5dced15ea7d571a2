//! Files as other programs write them: arrays, IDX files, manifests of another version.

use std::path::Path;

/// An IDX file of bytes.
pub fn idx(dimensions: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// An array as `numpy.save` writes it.
pub fn npy(kind: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Changes the manifest in the folder of a checkpoint, and seals it as whoever wrote it did.
pub fn reseal(checkpoint: &Path, change: impl Fn(&str) -> String) {
    let path = checkpoint.join("manifest.json");
    let whole = std::fs::read_to_string(&path).expect("there is a manifest");
    let (body, _) = whole.split_once(",\n  \"seal\"").expect("it has a seal");
    let body = change(body);
    let seal = blake3::hash(body.as_bytes()).to_hex();
    std::fs::write(&path, format!("{body},\n  \"seal\": \"{seal}\"\n}}\n")).expect("it can be written");
}

/// Makes a checkpoint one of a version of dtrain that is not there yet.
pub fn make_newer(checkpoint: &Path) {
    reseal(checkpoint, |body| body.replacen("\"version\": 1", "\"version\": 9", 1));
}
