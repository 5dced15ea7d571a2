//! One committed checkpoint, opened, checked, and read at any world size.
//!
//! Nothing in the folder is believed: the manifest is sealed, every shard has a digest, and every tensor must be
//! where the manifest says. Reading holds one megabyte of a shard at a time.

use crate::manifest::TensorSpec;
use crate::tensor_file::{TensorFile, digest_of, values_from};
use crate::{
    CheckpointId, Damage, Digest, Disk, FROZEN_FILE, Fault, Manifest, PARAMETERS, STATS, ShardInfo, seal,
};
use safetensors::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the manifest in its folder.
pub(crate) const MANIFEST: &str = "manifest.json";

/// How much of a checkpoint is read before it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The manifest with its seal, the sizes and headers of all shards: quick, finds lost and cut files.
    Sizes,
    /// All of it: every byte is read and every digest compared. Required before state is used.
    Digests,
}

/// A checkpoint that was opened and found sound as far as its [`Check`] went.
#[derive(Debug)]
pub struct Checkpoint {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    manifest: Manifest,
    /// Which shard holds each tensor.
    places: BTreeMap<String, String>,
}

impl Checkpoint {
    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        folder: &Path,
        id: CheckpointId,
        check: Check,
    ) -> Result<Self, Damage> {
        let damage = |file: &str, fault| Damage { checkpoint: id, file: file.to_owned(), fault };
        let manifest = read_manifest(&*disk, folder, id).map_err(|fault| damage(MANIFEST, fault))?;
        let specs = manifest.tensors.iter().map(|spec| (spec.name.as_str(), spec)).collect();
        let mut places = BTreeMap::new();
        for shard in &manifest.shards {
            let names = check_shard(&*disk, folder, (shard, check), &specs);
            for name in names.map_err(|fault| damage(&shard.file, fault))? {
                if places.insert(name.clone(), shard.file.clone()).is_some() {
                    return Err(damage(&shard.file, Fault::TwiceTensor(name)));
                }
            }
        }
        match manifest.tensors.iter().find(|spec| !places.contains_key(&spec.name)) {
            Some(spec) => Err(damage(MANIFEST, Fault::MissingTensor(spec.name.clone()))),
            None => Ok(Self { disk, folder: folder.to_owned(), manifest, places }),
        }
    }

    /// What it is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The manifest alone.
    #[must_use]
    pub fn into_manifest(self) -> Manifest {
        self.manifest
    }

    /// Loads one section into `out`, each tensor at the place that `specs`, the caller's layout, gives it.
    ///
    /// Places follow the caller, so a section whose alignment changed still loads. Elements of `out` between the
    /// tensors are left as they are.
    ///
    /// *Errors*: the layout and the checkpoint differ in a name or a shape, `out` is too short, or a shard cannot
    /// be read; `out` is then partly written and must not be used (S12).
    pub fn load_into(&self, specs: &[TensorSpec], section: &str, out: &mut [f32]) -> Result<(), Damage> {
        self.read(specs, section, out.len(), |from, values| {
            out[from..from + values.len()].copy_from_slice(values)
        })
    }

    /// Reads the tensors of one section and hands over one piece after the other, with the place of its first element in a section of
    /// `len`: for whoever has no room for all of it, or wants a part.
    ///
    /// *Errors*: as [`Checkpoint::load_into`]; what was handed over must not be used then (S12).
    pub fn read(
        &self,
        specs: &[TensorSpec],
        section: &str,
        len: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Damage> {
        let mut values = Vec::new();
        let wanted: Vec<_> = specs.iter().filter(|spec| spec.section == section).collect();
        let saved: BTreeMap<&str, &TensorSpec> =
            self.manifest.section(section).map(|spec| (spec.name.as_str(), spec)).collect();
        let names: BTreeSet<&str> = wanted.iter().map(|spec| spec.name.as_str()).collect();
        if let Some(name) = saved.keys().find(|name| !names.contains(*name)) {
            return Err(self.damage(MANIFEST, Fault::UnexpectedTensor((*name).to_owned())));
        }
        let mut reader = self.reader();
        for spec in wanted {
            let name = || spec.name.clone();
            let saved = saved.get(spec.name.as_str());
            let saved = saved.ok_or_else(|| self.damage(MANIFEST, Fault::MissingTensor(name())))?;
            if saved.shape != spec.shape {
                let (expected, got) = (spec.shape.clone(), saved.shape.clone());
                return Err(self.damage(MANIFEST, Fault::Shape { name: name(), expected, got }));
            }
            if spec.end() > len {
                return Err(self.damage(MANIFEST, Fault::OutOfBuffer { name: name(), end: spec.end(), len }));
            }
            let mut at = spec.offset;
            reader.stream(&spec.name, |bytes| {
                values.resize(bytes.len() / 4, 0.0);
                values_from(bytes, &mut values);
                each(at, &values);
                at += values.len();
            })?;
        }
        Ok(())
    }

    /// Reads tensors, best in the order of the manifest: a shard stays open until a tensor of another is asked for.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { checkpoint: self, shard: None }
    }

    /// Computes the digest for people from the shards: master parameters, then running statistics, each in layout
    /// order.
    pub fn digest(&self) -> Result<Digest, Damage> {
        let (mut hasher, mut reader) = (blake3::Hasher::new(), self.reader());
        for section in [PARAMETERS, STATS] {
            let mut specs: Vec<_> = self.manifest.section(section).collect();
            specs.sort_by_key(|spec| spec.offset);
            for spec in specs {
                reader.stream(&spec.name, |bytes| {
                    hasher.update(bytes);
                })?;
            }
        }
        Ok(Digest(*hasher.finalize().as_bytes()))
    }

    /// Where its run keeps the parameters that stay as they are: `RUN/checkpoints/ID` is its folder.
    pub(crate) fn frozen_file(&self) -> PathBuf {
        let run = self.folder.ancestors().nth(2).unwrap_or(&self.folder);
        run.join(FROZEN_FILE)
    }

    pub(crate) fn damage(&self, file: &str, fault: Fault) -> Damage {
        Damage { checkpoint: self.manifest.id, file: file.to_owned(), fault }
    }
}

/// Checks one shard against the manifest and gives the tensors in it.
fn check_shard(
    disk: &dyn Disk,
    folder: &Path,
    (shard, check): (&ShardInfo, Check),
    specs: &BTreeMap<&str, &TensorSpec>,
) -> Result<Vec<String>, Fault> {
    let path = folder.join(&shard.file);
    let (input, len) = disk.open(&path)?;
    if len != shard.bytes.0 {
        return Err(Fault::Size { expected: shard.bytes.0, got: len });
    }
    if check == Check::Digests {
        let (_, got) = digest_of(disk.open(&path)?.0).map_err(Fault::Unreadable)?;
        if got != shard.blake3 {
            return Err(Fault::Digest { expected: shard.blake3, got });
        }
    }
    let file = TensorFile::open(input, len)?;
    let names = file.names();
    for name in &names {
        let spec = specs.get(name.as_str()).ok_or_else(|| Fault::UnexpectedTensor(name.clone()))?;
        let info = file.info(name).expect("a listed tensor");
        if info.dtype != Dtype::F32 {
            return Err(Fault::Kind { name: name.clone(), got: info.dtype.to_string() });
        }
        if info.shape != spec.shape {
            let (expected, got) = (spec.shape.clone(), info.shape.clone());
            return Err(Fault::Shape { name: name.clone(), expected, got });
        }
    }
    Ok(names)
}

/// Reads the tensors of a checkpoint one after another.
pub(crate) struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    /// The shard that the last tensor came from.
    shard: Option<(&'a str, TensorFile)>,
}

impl Reader<'_> {
    /// Gives the bytes of one tensor to `each`, in order, in pieces of whole elements.
    pub(crate) fn stream(&mut self, name: &str, each: impl FnMut(&[u8])) -> Result<(), Damage> {
        let checkpoint = self.checkpoint;
        let missing = || checkpoint.damage(MANIFEST, Fault::MissingTensor(name.to_owned()));
        let shard = checkpoint.places.get(name).ok_or_else(missing)?.as_str();
        let damage = |fault| checkpoint.damage(shard, fault);
        let mut file = match self.shard.take() {
            Some((open, file)) if open == shard => file,
            _ => {
                let opened = checkpoint.disk.open(&checkpoint.folder.join(shard));
                let (input, len) = opened.map_err(|error| damage(error.into()))?;
                TensorFile::open(input, len).map_err(damage)?
            }
        };
        file.stream(name, each).map_err(damage)?;
        self.shard = Some((shard, file));
        Ok(())
    }
}

fn read_manifest(disk: &dyn Disk, folder: &Path, id: CheckpointId) -> Result<Manifest, Fault> {
    let (input, len) = disk.open(&folder.join(MANIFEST))?;
    if len > seal::MAX_MANIFEST {
        return Err(Fault::TooLarge { limit: seal::MAX_MANIFEST, got: len });
    }
    let mut bytes = Vec::with_capacity(len as usize);
    // The bound holds even if the file grows while it is read.
    input.take(seal::MAX_MANIFEST).read_to_end(&mut bytes).map_err(Fault::Unreadable)?;
    let manifest = seal::decode(&bytes)?;
    if manifest.id != id {
        return Err(Fault::OtherCheckpoint(manifest.id));
    }
    Ok(manifest)
}
