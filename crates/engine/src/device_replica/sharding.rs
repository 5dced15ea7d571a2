//! A replica on a device of its own that keeps the moments of some shards alone: what it does when it is told to.
//!
//! What it holds, and its part of an update, is `device_shards.rs`. This file does not know who holds what.

use super::DeviceReplica;
use super::lent::{lay_into, slot};
use crate::OwnMemory;
use crate::error::EngineError;
use crate::flat::Flat;
use crate::layout::Section;
use crate::passes::{Divisor, Reduced};
use crate::sharding::{HeldState, Lies, ReducedSum, Sharding, ShardingThere, Words};
use crate::sharing::UpdateShare;
use crate::update_info::UpdateInfo;
use dtrain_types::{DeviceMemory, Holding, Step};
use std::ops::Range;

impl<D: OwnMemory> Sharding for DeviceReplica<D> {
    fn holds(&self, section: Section) -> bool {
        !self.has_whole(section)
    }

    fn holding(&self) -> &Holding {
        self.shards.as_ref().expect(SHARDED).holding()
    }

    fn measure(&mut self, step: Step, sum: ReducedSum<'_>, share: UpdateShare) -> Result<(), EngineError> {
        assert_eq!(step, self.host.applied.next(), "updates come in order, each once");
        let ReducedSum { lies, weight, samples } = sum;
        let Self { device, facts, gradients, shards, loss_scale, lent, lent_there, .. } = self;
        let divisor = Divisor { weight, scale: *loss_scale };
        let shards = shards.as_mut().expect(SHARDED);
        match lies {
            Lies::Home(gradient) => {
                assert_eq!(
                    gradient.len(),
                    facts.gradient_len(),
                    "a reduced gradient has the layout's length"
                );
                device.send(gradient, &mut gradients[0])?;
            }
            Lies::Kept => {}
            Lies::Folded { kept, sum } => {
                let sent = shards.keep(device, kept, &sum);
                *lent = sum;
                sent?;
                return shards.measure_kept(device, facts, (step, share), (samples, divisor));
            }
            Lies::FoldedThere { kept, sum } => {
                let elements = kept.elements();
                shards.keep_there(kept, slot::<D>(&sum));
                *lent_there = Some((sum, elements));
                return shards.measure_kept(device, facts, (step, share), (samples, divisor));
            }
        }
        let reduced = Reduced::<D> { gradient: D::look(&gradients[0]), samples, divisor };
        shards.measure(device, facts, (step, share), &reduced)
    }

    fn lend_sum(&mut self, elements: usize) -> Flat {
        self.shards.as_mut().expect(SHARDED).forget();
        let lent = std::mem::take(&mut self.lent);
        if lent.len() == elements { lent } else { Flat::zeros(elements) }
    }

    fn there(&mut self) -> Option<&mut dyn ShardingThere> {
        Some(self)
    }

    fn tell(&mut self, words: Words<'_>) -> Result<(), EngineError> {
        let Self { device, gradients, shards, .. } = self;
        let shards = shards.as_ref().expect(SHARDED);
        match words {
            Words::Home(words) => shards.tell(device, words),
            Words::Kept(words) => {
                let mut gradient = D::take(&mut gradients[0]);
                device.copy(shards.told(), D::part_mut(&mut gradient, words));
                Ok(())
            }
        }
    }

    fn hear(&mut self, words: Words<'_>) -> Result<(), EngineError> {
        let Self { device, gradients, shards, .. } = self;
        shards.as_mut().expect(SHARDED).hear(|heard| match words {
            Words::Home(words) => {
                heard.copy_from_slice(words);
                Ok(())
            }
            Words::Kept(words) => {
                assert_eq!(words.len(), heard.len(), "words of all");
                device.fetch_from(&gradients[0], words.start, heard)
            }
        })
    }

    fn measured(&self) -> Option<Step> {
        self.shards.as_ref().expect(SHARDED).measured()
    }

    fn settle(&mut self) -> Result<UpdateInfo, EngineError> {
        let Self { facts, optimizer, shards, .. } = self;
        shards.as_mut().expect(SHARDED).settle(facts, optimizer)
    }

    fn update_held(&mut self, _home: Option<&[f32]>) -> Result<(), EngineError> {
        let Self { device, facts, sections, optimizer, shards, host, loss_scale, is_home, .. } = self;
        let [parameters, stats, _, _, average] = sections.each_mut().map(|section| D::take(section));
        let rule = (&*facts, &*optimizer);
        let shards = shards.as_mut().expect(SHARDED);
        let (step, info) = shards.update(device, rule, [parameters, stats, average]);
        *loss_scale = info.loss_scale;
        loss_scale.map_or(Ok(()), |scale| device.set_loss_scale(scale.factor))?;
        device.submit();
        (host.applied, *is_home) = (step, false);
        Ok(())
    }

    fn commit(&mut self, step: Step) {
        assert_eq!(self.host.applied, step, "an update is made before it is committed");
        let Self { device, sections: [parameters, _, _, _, average], optimizer, shards, .. } = self;
        let shards = shards.as_ref().expect(SHARDED);
        shards.commit(device, optimizer, D::look(parameters), D::take(average));
    }

    fn read(&mut self, section: Section, from: usize, to: &mut [f32]) -> Result<(), EngineError> {
        match self.has_whole(section) {
            true => self.device.fetch_from(&self.sections[section as usize], from, to),
            false => self.shards.as_ref().expect(SHARDED).read(&self.device, section, from, to),
        }
    }

    fn write(&mut self, section: Section, to: usize, values: &[f32]) -> Result<(), EngineError> {
        assert!(self.has_whole(section), "what is held is prepared, and then adopted");
        self.device.send_to(values, &mut self.sections[section as usize], to)?;
        self.is_home = false;
        Ok(())
    }

    fn prepare(&mut self, holding: &Holding) -> Result<HeldState, EngineError> {
        let parameters = self.facts.parameters;
        let mut prepared = HeldState::zeros(holding, parameters, self.optimizer.held_sections());
        prepared.take_first(&self.host);
        if let Some(seed) = self.first {
            prepared.draw_first(&self.about.layout, seed);
        }
        for run in prepared.held().meets(self.shards.as_ref().expect(SHARDED).held()) {
            for section in prepared.sections_there() {
                let to = prepared.part_mut(section, run.clone());
                self.read(section, run.start, to)?;
            }
        }
        Ok(prepared)
    }

    fn adopt(&mut self, moments: HeldState, applied: Step) -> Result<(), EngineError> {
        let Self { device, facts, about, optimizer, sections, shards, host, loss_scale, first, .. } = self;
        let all = optimizer.runs(&about.layout);
        shards.as_mut().expect(SHARDED).hold(device, &moments, &all, facts)?;
        moments.sections_there().for_each(|section| host.empty(section));
        *first = None;
        host.applied = applied;
        // The scale of the loss is a part of the statistics, which may be others'.
        device.fetch(&sections[Section::Stats as usize], host.section_mut(Section::Stats))?;
        *loss_scale = facts.loss_scale(host.section(Section::Stats));
        loss_scale.map_or(Ok(()), |scale| device.set_loss_scale(scale.factor))
    }
}

impl<D: OwnMemory> ShardingThere for DeviceReplica<D> {
    fn works_in(&self, memory: &DeviceMemory) -> bool {
        D::slot(memory).is_some()
    }

    fn lend_sum(&mut self, elements: usize) -> Option<DeviceMemory> {
        self.shards.as_mut().expect(SHARDED).forget();
        let lent = self.lent_there.take().filter(|(_, len)| *len == elements);
        lent.map(|(memory, _)| memory)
    }

    fn lay(&mut self, section: Section, elements: Range<usize>, to: &DeviceMemory, at: usize) {
        let Self { device, sections, shards, optimizer, .. } = self;
        let from = match optimizer.held_sections()[section as usize] {
            true => shards.as_ref().expect(SHARDED).part(section, &elements),
            false => D::part(D::look(&sections[section as usize]), elements.clone()),
        };
        lay_into(device, from, to, at..at + elements.len());
    }

    fn pick(&mut self, parameters: Range<usize>, from: &DeviceMemory, at: usize) {
        assert!(self.has_whole(Section::Parameters), "what is held is nobody else's");
        let from = slot::<D>(from);
        let from = D::part(D::look(&from), at..at + parameters.len());
        self.device.copy_to(from, &mut self.sections[Section::Parameters as usize], parameters.start);
        self.is_home = false;
    }
}

/// Why a state is asked for its part: nobody asks otherwise.
const SHARDED: &str = "it keeps the moments of some shards";
