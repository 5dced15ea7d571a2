//! Files as other programs write them: arrays, IDX files, tensors, manifests of another version.

use serde_json::{Map, Value, json};
use std::fs;
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

/// A tensor of a safetensors file: name, shape and elements.
pub type NamedTensor = (String, Vec<usize>, Vec<f32>);

/// The tensors of a safetensors file.
pub fn read_tensors(path: &Path) -> Vec<NamedTensor> {
    let bytes = fs::read(path).expect("the file was written");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a header");
    let numbers = |value: &Value| -> Vec<usize> {
        value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number") as usize).collect()
    };
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, info)| {
            let place = numbers(&info["data_offsets"]);
            let (values, _) = data[place[0]..place[1]].as_chunks::<4>();
            (name.clone(), numbers(&info["shape"]), values.iter().map(|v| f32::from_le_bytes(*v)).collect())
        })
        .collect()
}

/// A safetensors file of these tensors.
pub fn write_tensors(path: &Path, tensors: &[NamedTensor]) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let info = json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]});
        header.insert(name.clone(), info);
    }
    let header = Value::from(header).to_string();
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat())
        .expect("the file can be written");
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
