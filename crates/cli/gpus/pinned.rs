//! Which large products of a run NVIDIA's library does, and by which of its algorithms: looked up in the run, then in the user's cache,
//! and what is in neither is chosen now, by timing.
//!
//! A child opens the library and the GPU (`gpu-probe --pins`), so that this process opens no foreign library and takes no memory of a GPU. It
//! does not know who multiplies what.

use super::open_gpu;
use super::verdict::{answer_to, cache_folder};
use super::versions::oldest;
use crate::arguments::GpuProbe;
use crate::commands::print_json;
use crate::config::CudaList;
use crate::error::CliError;
use crate::whole_file::{WholeFile, unwritable};
use dtrain_cuda::libraries::choosing::choose;
use dtrain_cuda::libraries::cublaslt::{CublasLt, ProductKey};
use dtrain_cuda::libraries::pins::ProductPins;
use dtrain_locate::{Environment, Finder, Library};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// In the folder of a run: what was chosen for it.
const FILE: &str = "products.json";
/// In the user's cache: what was chosen before, by model of GPU and version of the library.
const FOLDER: &str = "products";
/// A child that takes longer is given up: it times some thousands of products, and may compile kernels first.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a library does for the ranks of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Where the library is.
    #[serde(with = "crate::serde_path")]
    pub library: PathBuf,
    /// Which products, by which algorithms.
    pub products: ProductPins,
}

/// What a child is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    #[serde(with = "crate::serde_path")]
    library: PathBuf,
    wanted: Vec<ProductKey>,
    /// What the run did before.
    before: Option<ProductPins>,
}

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// What was chosen, and how much of that was chosen now.
    Chosen(ProductPins, usize),
    Failed(String),
}

/// What was found for a run, and what is to be said of it.
#[derive(Clone, Debug, Default)]
pub struct Products {
    /// Nothing where dtrain's own kernels do all.
    pub pinned: Option<Pinned>,
    /// For people.
    pub notes: Vec<String>,
}

impl Pinned {
    /// What the library does in a run that was begun; nothing where it does nothing, or where that cannot be read.
    #[must_use]
    pub fn of_run(run: &Path) -> Option<ProductPins> {
        let text = std::fs::read_to_string(run.join(FILE)).ok()?;
        let read = serde_json::from_str(&text);
        read.inspect_err(|error| tracing::warn!(%error, "{FILE} cannot be read, and is chosen anew")).ok()
    }

    /// Writes it into the folder of a run, whole or not at all.
    ///
    /// *Errors*: of the system.
    pub fn keep(&self, run: &Path) -> Result<(), CliError> {
        write_pins(&run.join(FILE), &self.products)
    }
}

/// What a library does of these products, on the GPUs of a list: as the run did it before, if it did.
///
/// Whatever goes wrong is told, and dtrain's own kernels do it. *Blocks* while what nobody has chosen before is timed: a tenth of a second
/// for each product.
pub fn pinned(list: &CudaList, wanted: &[ProductKey], before: Option<ProductPins>) -> Products {
    if wanted.is_empty() {
        return Products::default();
    }
    let own = |why: &str| {
        let lost = match &before {
            Some(before) if !before.is_empty() => {
                ": the bits will differ from those of a run that never stopped"
            }
            Some(_) | None => "",
        };
        Products { pinned: None, notes: vec![format!("products are dtrain's own kernels: {why}{lost}")] }
    };
    let finding =
        Finder::new(Environment::here()).find(Library::CublasLt, oldest(Library::CublasLt).as_ref());
    let Some(found) = finding.found else {
        return own("cuBLASLt is not here (`dtrain doctor` says how to get it)");
    };
    let asked = Asked { library: found.path.clone(), wanted: wanted.to_vec(), before: before.clone() };
    let gpus = list.numbers().iter().copied().take(1).collect();
    let probe = GpuProbe { gpus, nccl: None, judge: None, pins: true };
    let text = serde_json::to_string(&asked).expect("plain data");
    match answer_to(&probe, Some(text), PATIENCE) {
        Ok(Answer::Chosen(products, now)) => {
            let mut notes = Vec::new();
            if let Some(before) = before.filter(|before| before.of(wanted).word() != products.word()) {
                notes.push(format!(
                    "products were chosen on {} with cuBLASLt {}, and here are {} and {}: the bits will differ from those of a run that never stopped",
                    before.gpu, before.version, products.gpu, products.version
                ));
            }
            tracing::info!(
                products = products.chosen.len(),
                chosen_now = now,
                word = products.word(),
                "cuBLASLt"
            );
            let by_library = products.algorithms().count();
            let rest = wanted.len() - by_library;
            notes.push(match rest {
                0 => format!("large products by cuBLASLt {} ({by_library} shapes)", found.version),
                rest => format!(
                    "large products by cuBLASLt {} ({by_library} shapes; {rest} by dtrain's own kernels, as fast)",
                    found.version
                ),
            });
            let pinned = (by_library > 0).then_some(Pinned { library: found.path, products });
            Products { pinned, notes }
        }
        Ok(Answer::Failed(why)) | Err(why) => own(&one_line(&why)),
    }
}

/// Does what a child is there for.
///
/// *Errors*: nobody reads.
pub(super) fn answer(asked: &GpuProbe) -> Result<(), CliError> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string());
    let chosen = read
        .and_then(|_| serde_json::from_str(&text).map_err(|error| error.to_string()))
        .and_then(|question: Asked| chosen(asked.gpus[0], &question));
    print_json(&json!(chosen.unwrap_or_else(Answer::Failed)))
}

fn chosen(number: u32, asked: &Asked) -> Result<Answer, String> {
    let gpu = open_gpu(number)?;
    gpu.context().enter().map_err(|error| error.to_string())?;
    let library = Arc::new(CublasLt::open(&asked.library).map_err(|error| error.to_string())?);
    let name = gpu.context().about().name.clone();
    let file = file_of(&cache_folder(), &name, library.version());
    let mut known = remembered(&file, &name, library.version());
    // What the run did it does again.
    let same = asked.before.iter().filter(|before| before.gpu == name && before.version == library.version());
    let before = same.clone().flat_map(|before| before.chosen.clone()).collect::<Vec<_>>();
    let lacking: Vec<ProductKey> = known
        .lacking(&asked.wanted)
        .into_iter()
        .filter(|key| before.iter().all(|pin| pin.key != *key))
        .collect();
    for key in &lacking {
        known.put(choose(&gpu, &library, key).map_err(|error| error.to_string())?);
    }
    if !lacking.is_empty() {
        let made =
            std::fs::create_dir_all(cache_folder().join(FOLDER)).map_err(|error| unwritable(&file, &error));
        if let Err(error) = made.and_then(|()| write_pins(&file, &known)) {
            tracing::warn!(%error, "what was chosen cannot be kept for the next run");
        }
    }
    before.into_iter().for_each(|pin| known.put(pin));
    Ok(Answer::Chosen(known.of(&asked.wanted), lacking.len()))
}

fn write_pins(path: &Path, pins: &ProductPins) -> Result<(), CliError> {
    let mut file = WholeFile::create(path)?;
    file.write(serde_json::to_string_pretty(pins).expect("plain data").as_bytes())?;
    file.finish()
}

/// Where choices for a model of GPU and a version of the library are kept.
fn file_of(cache: &Path, gpu: &str, version: u64) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (gpu, version, dtrain_cuda::kernels::revision()).hash(&mut hasher);
    cache.join(FOLDER).join(format!("{:016x}.json", hasher.finish()))
}

/// What is kept there; nothing if it is damaged, or of something else.
fn remembered(file: &Path, gpu: &str, version: u64) -> ProductPins {
    let text = std::fs::read_to_string(file).ok();
    let read = text.and_then(|text| serde_json::from_str::<ProductPins>(&text).ok());
    let same = read.filter(|pins| pins.gpu == gpu && pins.version == version && pins.is_in_order());
    same.unwrap_or_else(|| ProductPins::new(gpu, version))
}

fn one_line(words: &str) -> String {
    words.split("\nhint:").next().unwrap_or(words).replace('\n', " ")
}
