//! Searches on made-up machines: real shared objects in temporary folders, which are really opened and asked.

#[path = "../../../tests/harness/fake_libraries.rs"]
mod fake_libraries;

use dtrain_locate::{Environment, Finder, Finding, Library, Origin, Refusal, Refused, Version};
use fake_libraries::{Workshop, complete, gives};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn machine(folders: &[&Path]) -> Environment {
    Environment {
        standard: folders.iter().map(|folder| (*folder).to_owned()).collect(),
        ..Environment::default()
    }
}

fn find(library: Library, folders: &[&Path]) -> Finding {
    Finder::new(machine(folders)).find(library, None)
}

fn version(text: &str) -> Version {
    Version::parse(text).unwrap()
}

#[test]
fn each_library_is_asked_for_its_version_by_its_own_function() {
    let Some(workshop) = Workshop::open() else { return };
    let folder = complete(&workshop, "lib");
    for (library, wanted) in
        Library::ALL.into_iter().zip(["13.0", "580.65.06", "13.0", "13.0.2", "9.13.0", "2.32.3"])
    {
        let found = find(library, &[&folder]).found.unwrap_or_else(|| panic!("{library} was not found"));
        assert_eq!(found.version.to_string(), wanted, "{library}");
        assert_eq!((found.path.parent(), found.origin), (Some(folder.as_path()), Origin::Standard));
    }
}

#[test]
fn rccl_answers_where_there_is_no_nccl() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.build("rocm/librccl.so.1", &gives("ncclGetVersion", 22606));
    let found = find(Library::Nccl, &[&workshop.root().join("rocm")]).found.unwrap();
    assert_eq!((found.path, found.version), (path, version("2.26.6")));
}

#[test]
fn of_several_versions_the_first_place_wins_and_in_a_place_the_highest() {
    let Some(workshop) = Workshop::open() else { return };
    let build = |file: &str, code| workshop.build(file, &gives("ncclGetVersion", code));
    build("near/libnccl.so.2.9.1", 20901);
    let highest = build("near/libnccl.so.2.10.3", 21003);
    build("far/libnccl.so.2.32.3", 23203);
    symlink("libnccl.so.2.9.1", workshop.root().join("near/libnccl.so")).unwrap();
    let (near, far) = (workshop.root().join("near"), workshop.root().join("far"));
    for _ in 0..3 {
        assert_eq!(find(Library::Nccl, &[&near, &far]).found.unwrap().path, highest);
    }
    let found = Finder::new(machine(&[&near, &far])).find(Library::Nccl, Some(&version("2.14")));
    assert_eq!(found.found.unwrap().version, version("2.32.3"));
    let refused: Vec<String> = found.refused.iter().map(|refused| refused.why.to_string()).collect();
    assert_eq!(
        refused,
        ["is version 2.10.3, at least 2.14 is needed", "is version 2.9.1, at least 2.14 is needed"]
    );
}

#[test]
fn a_variable_of_our_own_goes_before_a_toolkit_a_python_and_the_linkers_path() {
    let Some(workshop) = Workshop::open() else { return };
    let root = workshop.root();
    let folders =
        ["own", "cuda/lib64", "venv/lib/python3.12/site-packages/nvidia/nccl/lib", "linker", "standard"];
    for (place, folder) in folders.into_iter().enumerate() {
        workshop.build(&format!("{folder}/libnccl.so.2"), &gives("ncclGetVersion", 23201 + place as i64));
    }
    let mut environment = machine(&[&root.join("standard")]);
    let mut set = |name, below: &str| drop(environment.variables.insert(name, root.join(below).into()));
    set("DTRAIN_LIBRARY_PATH", "own/libnccl.so.2");
    set("CUDA_HOME", "cuda");
    set("VIRTUAL_ENV", "venv");
    set("LD_LIBRARY_PATH", "linker");
    for patch in 1..=5 {
        let found = Finder::new(environment.clone()).find(Library::Nccl, None).found.unwrap();
        assert_eq!(found.version, Version::new(&[2, 32, patch]), "{}", found.origin);
        // Without this place the next one has its turn.
        fs::remove_file(found.path).unwrap();
    }
    assert_eq!(Finder::new(environment).find(Library::Nccl, None).found, None);
}

#[test]
fn what_does_not_do_is_passed_over_and_told() {
    let Some(workshop) = Workshop::open() else { return };
    let root = workshop.root();
    let folder = |name: &str| {
        fs::create_dir_all(root.join(name)).unwrap();
        root.join(name)
    };
    let name = "libnccl.so.2";
    fs::write(folder("script").join(name), "INPUT(libnccl.so.2.32)").unwrap();
    let whole = workshop.build(&format!("foreign/{name}"), &gives("ncclGetVersion", 23203));
    let mut bytes = fs::read(&whole).unwrap();
    fs::write(folder("torn").join(name), &bytes[..1000]).unwrap();
    bytes[18] = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    fs::write(&whole, bytes).unwrap();
    workshop.build(&format!("another/{name}"), "int somethingElse(void) { return 0; }");
    workshop.build(&format!("angry/{name}"), "int ncclGetVersion(int *v) { *v = 0; return 3; }");
    workshop.build(
        &format!("needy/{name}"),
        "int nobody(void); int ncclGetVersion(int *v) { *v = nobody(); return 0; }\nint (*f)(void) = nobody;",
    );
    workshop.build(&format!("cuda/lib64/stubs/{name}"), &gives("ncclGetVersion", 23203));
    symlink("nothing", folder("dangling").join(name)).unwrap();
    let good = workshop.build(&format!("good/{name}"), &gives("ncclGetVersion", 23203));
    let names = [
        "nowhere",
        "script",
        "torn",
        "foreign",
        "another",
        "angry",
        "needy",
        "cuda/lib64/stubs",
        "dangling",
        "good",
    ];
    let places = names.map(|name| root.join(name));
    let finding = find(Library::Nccl, &places.each_ref().map(|path| path.as_path()));
    assert_eq!(finding.found.as_ref().unwrap().path, good);
    assert_eq!(finding.looked.len(), names.len(), "places that are not there are listed too");
    let told: Vec<String> = finding.refused.iter().map(|refused| refused.why.to_string()).collect();
    let other = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86-64" };
    let wanted = [
        "is no shared library",
        "is torn: 1000 bytes of at least ",
        &format!("is for {other}"),
        "has no function ncclGetVersion",
        "ncclGetVersion returns 3",
        "cannot be opened: ",
        "is a stub to link against, not the library",
        "cannot be read: No such file or directory",
    ];
    assert_eq!(told.len(), wanted.len(), "{told:?}");
    for (told, wanted) in told.iter().zip(wanted) {
        assert!(told.starts_with(wanted), "{told} should begin with {wanted}");
    }
    assert!(told[5].contains("undefined symbol: nobody"), "the linker's own words are kept: {}", told[5]);
    let text = serde_json::to_string(&finding).unwrap();
    assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), finding, "{text}");
}

#[test]
fn what_may_not_be_read_is_told_and_the_search_goes_on() {
    let machine_root = tempfile::tempdir().unwrap();
    let locked = machine_root.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::write(locked.join("libnccl.so.2"), "x").unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    let finding = find(Library::Nccl, &[&locked, Path::new("/nowhere")]);
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o700)).unwrap();
    // Root may read everything, and then finds a file that is no library.
    let [Refused { why, .. }] = finding.refused.as_slice() else { panic!("{finding:?}") };
    assert!(matches!(why, Refusal::Unreadable { .. } | Refusal::NoLibrary), "{why}");
    assert_eq!((finding.looked.len(), finding.found), (2, None));
}

#[test]
fn nvml_without_a_driver_says_so_in_its_own_words() {
    let Some(workshop) = Workshop::open() else { return };
    let source = "int nvmlInit_v2(void) { return 9; } int nvmlShutdown(void) { return 0; }\n\
                  const char *nvmlErrorString(int e) { return \"Driver Not Loaded\"; }\n\
                  int nvmlSystemGetDriverVersion(char *t, unsigned n) { return 0; }";
    workshop.build("lib/libnvidia-ml.so.1", source);
    let finding = find(Library::Nvml, &[&workshop.root().join("lib")]);
    assert!(
        finding.sentence().ends_with("nvmlInit_v2 returns 9 (Driver Not Loaded)"),
        "{}",
        finding.sentence()
    );
}

#[test]
fn a_found_library_is_the_one_that_its_bare_name_leads_to() {
    let Some(workshop) = Workshop::open() else { return };
    // A name that no other test opens: the first one of a name stays for the whole process.
    workshop.build("old/libcudnn.so.7", &fake_libraries::returns("cudnnGetVersion", 7605));
    let path = workshop.build("new/libcudnn.so.8", &fake_libraries::returns("cudnnGetVersion", 8907));
    let before = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!before.contains("libcudnn.so.8"));
    let (old, new) = (workshop.root().join("old"), workshop.root().join("new"));
    let finding = Finder::new(machine(&[&old, &new])).find(Library::Cudnn, Some(&version("8")));
    assert_eq!(finding.found.unwrap().path, path);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("new/libcudnn.so.8"), "the one that was found stays open");
    assert!(!maps.contains("old/libcudnn.so.7"), "the one that was refused is closed again");
    // A library that needs it by name, and that finds it nowhere else, is given the open one.
    let source = "unsigned long cudnnGetVersion(void); unsigned long cublasLtGetVersion(void) { return cudnnGetVersion() * 100; }";
    workshop.build_needing("other/libcublasLt.so.12", source, &[&path]);
    let finding = Finder::new(machine(&[&workshop.root().join("other")])).find(Library::CublasLt, None);
    assert_eq!(finding.found.expect("what it needs is open").version, version("89.7.0"));
}

#[test]
fn a_file_that_is_avoided_is_not_opened() {
    let Some(workshop) = Workshop::open() else { return };
    // Whoever opens it dies.
    let deadly = workshop
        .build("a/libnccl.so.2", "__attribute__((constructor)) static void die(void) { __builtin_trap(); }");
    let good = workshop.build("b/libnccl.so.2", &gives("ncclGetVersion", 23203));
    let folders = ["a", "b"].map(|name| workshop.root().join(name));
    let why = Refusal::Deadly { how: "killed by signal 4".into() };
    let avoided = Refused { path: deadly, why };
    let finder =
        Finder::new(machine(&folders.each_ref().map(|path| path.as_path()))).avoiding(avoided.clone());
    let mut opened = Vec::new();
    let finding = finder.find_telling(Library::Nccl, None, |path| opened.push(path.to_owned()));
    assert_eq!((opened, finding.refused), (vec![good], vec![avoided]));
}

/// Real libraries, where there are some: those of this machine, or of the folder of packages that
/// `DTRAIN_TEST_LIBRARIES` names (`pip install --target FOLDER nvidia-cuda-nvrtc nvidia-nccl-cu13`).
#[test]
fn real_libraries_tell_versions_that_are_plausible() {
    let mut environment = Environment::here();
    if let Some(packages) = std::env::var_os("DTRAIN_TEST_LIBRARIES") {
        environment.variables.insert("PYTHONPATH", packages);
    }
    let least = [("nvrtc", "11.0"), ("nccl", "2.4"), ("cublas_lt", "11.0"), ("cudnn", "8.0")];
    for (key, least) in least {
        let finding = Finder::new(environment.clone()).find(Library::from_key(key).unwrap(), None);
        match &finding.found {
            None => eprintln!("skipped: {key} {}", finding.sentence()),
            Some(found) => {
                eprintln!("{key} {} at {} ({})", found.version, found.path.display(), found.origin);
                assert!(found.version > version(least) && found.version < version("99"), "{found:?}");
            }
        }
    }
}
