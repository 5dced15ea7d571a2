//! The rules for kernels, read off their sources: no atomics, nothing included, one idea a file and said at its top.

#[path = "stand_in/device_trait.rs"]
mod device_trait;

use dtrain_cuda::kernels::{FILES, KERNELS, Kernel};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A source without comments, so that a comment may say what the code must not.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Words of atomic operations, and of instructions that could hide one.
fn forbidden(text: &str) -> Vec<&'static str> {
    // Shared memory is no reduction.
    let code = code(text).to_lowercase().replace("shared.", "");
    ["atomic", "asm", "red.", "__nv_", "volatile", "#include", "clock", "%smid"]
        .into_iter()
        .filter(|word| code.contains(word))
        .collect()
}

#[test]
fn no_kernel_has_an_atomic_an_assembler_line_or_an_include() {
    for file in FILES {
        assert_eq!(forbidden(file.text), [""; 0], "{}", file.name);
        for part in file.parts {
            let wrong = forbidden(part.text);
            if ASSEMBLER.iter().any(|(name, _)| *name == part.name) {
                assert!(wrong.iter().all(|word| ["asm", "volatile"].contains(word)), "{wrong:?}");
            } else {
                assert_eq!(wrong, [""; 0], "{}", part.name);
            }
        }
    }
}

/// The parts that may have words of the assembler, and all instructions that they may have.
const ASSEMBLER: &[(&str, &[&str])] = &[
    (
        "tensor.cuh",
        &[
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
            "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
            "cp.async.cg.shared.global",
            "cp.async.commit_group",
            "cp.async.wait_group",
        ],
    ),
    ("quick.cuh", &["ex2.approx.ftz.f32", "rcp.approx.ftz.f32"]),
    ("bf16.cuh", &["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "cvt.rn.bf16x2.f32"]),
    ("f16.cuh", &["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "cvt.rn.f16x2.f32", "cvt.f32.f16"]),
];

/// The instructions of a text's lines of assembler: the first word of each string after `asm`.
fn instructions(text: &str) -> Vec<String> {
    let text = code(text);
    let strings = text.split("asm").skip(1).filter_map(|rest| rest.split('"').nth(1));
    let instructions = strings.flat_map(|string| string.split(';').filter(|one| !one.trim().is_empty()));
    instructions.map(|one| one.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_lines_of_assembler_are_these_and_each_is_one_instruction() {
    let parts = || FILES.iter().flat_map(|file| file.parts);
    let text = |name: &str| parts().find(|part| part.name == name).expect("it is there").text;
    for (name, wanted) in ASSEMBLER {
        assert_eq!(instructions(text(name)), *wanted, "{name}");
    }
    let (name, wanted) = ASSEMBLER[0];
    let hidden = text(name).replacen(
        "cp.async.commit_group;",
        "red.global.add.f32 [%0], %1; cp.async.commit_group;",
        1,
    );
    assert_ne!(instructions(&hidden), wanted);
    assert!(forbidden(&hidden).contains(&"red."));
}

#[test]
fn the_rule_finds_an_atomic_add_however_it_is_written() {
    let add = FILES.iter().find(|file| file.name == "add.cu").expect("it is there").text;
    for (word, line) in [
        ("atomic", "atomicAdd(&y[i], x[i]);"),
        ("atomic", "__nv_atomic_fetch_add(y + i, x[i]);"),
        ("red.", "asm volatile(\"red.global.add.f32 [%0], %1;\" :: \"l\"(y + i), \"f\"(x[i]));"),
    ] {
        let wrong = add.replacen("each(y, x, y, len, [](float y, float x) { return y + x; });", line, 1);
        assert!(forbidden(&wrong).contains(&word), "{line}");
    }
    assert!(forbidden("// an atomicAdd is not used\n").is_empty());
}

/// A text whose lines `NAME(32, 64)` are what the macro of that name makes of them.
fn expanded(text: &str) -> String {
    let macros: Vec<(&str, Vec<&str>, &str)> = text
        .split("#define ")
        .skip(1)
        .filter_map(|rest| {
            let (name, rest) = rest.split_once('(')?;
            let (words, rest) = rest.split_once(')')?;
            Some((name, words.split(", ").collect(), rest.split("\n\n").next()?))
        })
        .collect();
    let made = |line: &str| {
        let (name, values) = line.strip_suffix(')')?.split_once('(')?;
        let (_, words, body) = macros.iter().find(|(known, ..)| *known == name)?;
        let put = |body: String, (word, value): (&&str, &str)| {
            let body = body.replace(&format!("##{word}##"), value).replace(&format!("##{word}"), value);
            body.replace(&format!("{word}##"), value)
        };
        Some(words.iter().zip(values.split(", ")).fold((*body).to_owned(), put))
    };
    // What a macro is made of is no kernel.
    let plain = macros.iter().fold(text.to_owned(), |text, (.., body)| text.replacen(body, "", 1));
    plain.lines().map(|line| made(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

/// How a kernel's name stands in its file: that of a kernel of several kinds of numbers without the kind, which `NAME` puts there.
fn spelled(kernel: &Kernel) -> String {
    let kinds = kernel.file.parts.iter().filter_map(|part| part.name.strip_suffix(".cuh"));
    let split = |kind: &str| kernel.name.split_once(kind);
    match kinds.filter(|kind| ["bf16", "f16", "f32"].contains(kind)).find_map(split) {
        Some((before, after)) => format!("NAME({before}, {after})("),
        None => format!("{}(", kernel.name),
    }
}

#[test]
fn every_file_is_in_the_table_with_all_of_its_kernels() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let names = |folder: &Path, end: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(folder)
            .expect("the folder is there")
            .map(|entry| entry.expect("an entry").file_name());
        entries
            .map(|name| name.into_string().expect("plain names"))
            .filter(|name| name.ends_with(end))
            .collect()
    };
    assert_eq!(names(&folder, ".cu"), FILES.iter().map(|file| file.name.to_owned()).collect());
    let used = FILES.iter().flat_map(|file| file.parts).map(|part| part.name.to_owned()).collect();
    assert_eq!(names(&folder.join("parts"), ".cuh"), used);
    for file in FILES {
        let text: String = file.parts.iter().map(|part| part.text).chain([file.text]).collect();
        let text = expanded(&text);
        let written = text.matches("extern \"C\" __global__ void __launch_bounds__(").count();
        assert_eq!(written, file.kernels().count(), "{}", file.name);
        for kernel in file.kernels() {
            // Some say how many blocks a multiprocessor has to have room for.
            let bounds =
                |blocks| format!("__launch_bounds__({}{blocks}) {}", kernel.threads, spelled(kernel));
            let has = |blocks| text.contains(&bounds(blocks));
            assert!(has("") || has(", 2"), "{} has no {}", file.name, bounds(""));
        }
    }
    assert_eq!(KERNELS.iter().map(|kernel| kernel.name).collect::<BTreeSet<_>>().len(), KERNELS.len());
}

#[test]
fn every_file_says_what_it_does_how_it_is_launched_in_which_order_it_sums_and_what_it_does_not_know() {
    for file in FILES {
        let top: String = file.text.lines().take_while(|line| line.starts_with("//")).collect();
        for word in ["Launch: ", "Order", "Does not know"] {
            assert!(top.contains(word), "{} does not say {word:?}", file.name);
        }
        let longest = file.text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(longest <= 125, "{} has a line of {longest} characters", file.name);
    }
}

/// What a device does that is no work for a kernel, or work that an operation of another name does in passing: a linear layer and
/// the gradient of layer norm add something.
const NO_KERNELS: [&str; 20] = [
    "activation_len",
    "activations",
    "activations_mut",
    "conv_input_gradient_of_relu",
    "curve_gradient",
    "linear_plus",
    "row_pitch",
    "layer_norm_gradient_plus",
    "len",
    "len_mut",
    "part",
    "ids_part",
    "ids_len",
    "part_mut",
    "split_mut",
    "read",
    "wait",
    "submit",
    "sums",
    "transpose",
];

#[test]
fn every_operation_of_a_device_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = fs::read_dir(root.join("src/operations")).expect("the folder is there");
    let texts = folder.map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("a text"));
    let text = texts.collect::<String>();
    let wanted = device_trait::functions();
    let is_there = |name: &str| ["(", "<"].iter().any(|end| text.contains(&format!("pub fn {name}{end}")));
    let missing = wanted.iter().filter(|name| !is_there(name));
    assert_eq!(missing.copied().collect::<BTreeSet<_>>(), NO_KERNELS.into_iter().collect());
}
