//! What a PyTorch program trains on whose PyTorch is ROCm's: AMD's GPUs, of which nothing of dtrain's own is asked.

use super::amd::AmdGpus;
use super::chosen::{Auto, Chosen, Refused};
use crate::config::{CudaList, Devices};

const WAY_OUT: &str = "`dtrain doctor` lists AMD's GPUs; devices=cpu trains on the cores";

/// Chooses among these GPUs. `reaches` is asked only where they are taken by themselves.
///
/// *Errors*: GPUs that were asked for and are not there.
pub fn choose(
    devices: &Devices,
    auto: Auto,
    amd: &AmdGpus,
    reaches: fn() -> Result<(), String>,
) -> Result<Chosen, Refused> {
    let cores = |why: String| Ok(Chosen::Cpu { why: Some(why) });
    let all = || (0..amd.count()).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let are_here = amd.are_here();
    match (devices, auto) {
        (Devices::Cpu, _) => Ok(Chosen::Cpu { why: None }),
        (Devices::Auto, _) if amd.all.is_empty() => cores("auto: no AMD GPU is here".to_owned()),
        (Devices::All, _) if amd.all.is_empty() => cores("all: no AMD GPU is here".to_owned()),
        (Devices::Auto, Auto::Cpu(why)) => cores(format!("auto: {are_here}, and {why}")),
        (Devices::Auto, _) if amd.count() == 0 => cores(format!("auto: {}", none_left(amd).0)),
        (Devices::All, _) if amd.count() == 0 => Err(none_left(amd)),
        (Devices::Auto, Auto::ByTest) => match reaches() {
            Ok(()) => taken(&all(), Some(format!("auto: {are_here}, and PyTorch alone computes there"))),
            Err(why) => cores(format!("auto: {are_here}, and {why}")),
        },
        (Devices::All, _) => taken(&all(), None),
        (Devices::Cuda(list), _) => match list.numbers().iter().find(|number| **number >= amd.count()) {
            None => Ok(gpus(list.clone(), None)),
            Some(number) => Err(out_of_range(*number, amd)),
        },
    }
}

fn taken(numbers: &str, why: Option<String>) -> Result<Chosen, Refused> {
    match Devices::parse(&format!("cuda:{numbers}")) {
        Ok(Devices::Cuda(list)) => Ok(gpus(list, why)),
        _ => Err(("AMD's GPUs cannot be numbered".to_owned(), WAY_OUT.to_owned())),
    }
}

fn gpus(list: CudaList, why: Option<String>) -> Chosen {
    // Nobody reads them while a run goes on.
    Chosen::Gpus { list, gpus: Vec::new(), nvml: None, why }
}

fn none_left(amd: &AmdGpus) -> Refused {
    let there =
        if amd.all.len() == 1 { "the AMD GPU".to_owned() } else { format!("{} AMD GPUs", amd.all.len()) };
    let by = amd.narrowed().unwrap_or_default();
    let variable = amd.narrowings.last().map_or("HIP_VISIBLE_DEVICES", |by| by.variable);
    (format!("{by} leaves none of {there}"), format!("unset it, or name the GPUs in it: {variable}=0,1"))
}

fn out_of_range(number: u32, amd: &AmdGpus) -> Refused {
    if amd.all.is_empty() {
        let message = "there is no AMD GPU on this host, and this PyTorch is ROCm's".to_owned();
        return (message, WAY_OUT.to_owned());
    }
    let which = amd.narrowed().map_or_else(|| "this host has".to_owned(), |by| format!("{by} leaves"));
    let known = match amd.count() {
        0 => return none_left(amd),
        1 => ("one AMD GPU".to_owned(), "it is cuda:0".to_owned()),
        some => (format!("{some} AMD GPUs"), format!("they are cuda:0 to cuda:{}", some - 1)),
    };
    (
        format!("there is no cuda:{number}: {which} {}", known.0),
        format!("{}, as ROCm's PyTorch numbers them; `dtrain doctor` lists them", known.1),
    )
}

#[cfg(test)]
mod tests {
    use super::super::amd::Narrowing;
    use super::super::amd::tests::healthy;
    use super::*;

    fn chosen(devices: &str, amd: &AmdGpus) -> Result<Chosen, Refused> {
        choose(&Devices::parse(devices).unwrap(), Auto::ByTest, amd, || Ok(()))
    }

    fn hidden() -> AmdGpus {
        let by = Narrowing { variable: "ROCR_VISIBLE_DEVICES", list: "-1".into(), ended_at: None };
        AmdGpus { visible: Vec::new(), narrowings: vec![by], ..healthy(2) }
    }

    #[test]
    fn all_and_auto_are_every_gpu_and_who_names_them_gets_those() {
        for (devices, expected) in [("all", "cuda:0,1,2"), ("auto", "cuda:0,1,2"), ("cuda:2,0", "cuda:2,0")] {
            let Ok(Chosen::Gpus { list, why, .. }) = chosen(devices, &healthy(3)) else {
                panic!("{devices}")
            };
            assert_eq!((list.to_string().as_str(), why.is_some()), (expected, devices == "auto"));
        }
        assert_eq!(chosen("cpu", &healthy(3)), Ok(Chosen::Cpu { why: None }));
    }

    #[test]
    fn auto_comes_to_the_cores_with_a_word_and_who_asks_hears_what_is_missing() {
        let cores = |words: &str| Ok(Chosen::Cpu { why: Some(words.to_owned()) });
        assert_eq!(chosen("auto", &healthy(0)), cores("auto: no AMD GPU is here"));
        assert_eq!(chosen("all", &healthy(0)), cores("all: no AMD GPU is here"));
        assert_eq!(
            chosen("auto", &hidden()),
            cores("auto: ROCR_VISIBLE_DEVICES=-1 leaves none of 2 AMD GPUs")
        );
        let words = |devices: &str, amd: &AmdGpus| chosen(devices, amd).unwrap_err();
        assert_eq!(
            words("all", &hidden()),
            (
                "ROCR_VISIBLE_DEVICES=-1 leaves none of 2 AMD GPUs".to_owned(),
                "unset it, or name the GPUs in it: ROCR_VISIBLE_DEVICES=0,1".to_owned()
            )
        );
        assert!(words("cuda:2", &healthy(2)).0.ends_with("this host has 2 AMD GPUs"));
        assert!(words("cuda:0", &healthy(0)).0.starts_with("there is no AMD GPU on this host"));
        let one = healthy(1);
        let chosen = |auto, reaches: fn() -> Result<(), String>| choose(&Devices::Auto, auto, &one, reaches);
        let unreached = chosen(Auto::ByTest, || Err("PyTorch sees none".to_owned()));
        assert_eq!(unreached, cores("auto: one AMD GPU is here, and PyTorch sees none"));
        assert_eq!(chosen(Auto::Cpu("no"), || panic!("asked")), cores("auto: one AMD GPU is here, and no"));
    }
}
