//! The gradient of a micro-batch, window by window: one that is final goes to those who hold it, and travels while the next one is computed.
//!
//! This file does not know how windows travel, nor what comes of the sum.

use crate::carries::{Carries, Parcel};
use crate::memory::{Memory, Site};
use crate::window_sums::Round;
use dtrain_collective::CollectiveError;
use dtrain_engine::{Begun, Flat, Gradient, Windows};
use dtrain_types::DeviceMemory;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Memory for the windows of a gradient: for one that is computed and one that travels, and for each that is begun early.
#[derive(Clone, Debug)]
pub struct GradientStock {
    windows: Windows,
    /// The one that is written, of those that are written in turn.
    in_turn: Option<Memory>,
    free: Vec<Memory>,
    /// By window, those that are begun early, unless they travel.
    early: Vec<Option<Memory>>,
    /// Where all of that is memory of a device, the host's for one that is only looked at; taken when the first is.
    looked_at: Option<Flat>,
}

impl GradientStock {
    /// For these windows, on this site. *Errors*: it has no room.
    pub fn at(site: &mut Site<'_>, windows: &Windows) -> Result<Self, CollectiveError> {
        let free = (0..2).map(|_| site.take(windows.longest())).collect::<Result<_, _>>()?;
        let early = windows.all().iter().map(|window| match window.begun {
            Begun::Early => site.take(window.elements.len()).map(Some),
            Begun::InTurn => Ok(None),
        });
        let early = early.collect::<Result<_, _>>()?;
        let looked_at = matches!(site, Site::There(_)).then(Flat::default);
        Ok(Self { in_turn: None, free, early, looked_at, windows: windows.clone() })
    }

    /// How many windows there is memory for.
    #[must_use]
    pub fn windows(&self) -> usize {
        self.free.len() + usize::from(self.in_turn.is_some()) + self.early.iter().flatten().count()
    }

    /// Takes back the memory of a window that was given to others.
    pub fn take_back(&mut self, Parcel { window, memory }: Parcel) {
        match self.windows.all()[window].begun {
            Begun::InTurn => self.free.push(memory),
            Begun::Early => self.early[window] = Some(memory),
        }
    }

    /// Where a window is written, if there is memory for it: else it travels.
    fn place(&mut self, window: usize) -> &mut Option<Memory> {
        match self.windows.all()[window].begun {
            Begun::Early => &mut self.early[window],
            Begun::InTurn => {
                self.in_turn = self.in_turn.take().or_else(|| self.free.pop());
                &mut self.in_turn
            }
        }
    }
}

/// The gradient of a micro-batch; of a rank that has none, what it takes part in.
pub struct WindowedGradient<'a, 'b> {
    stock: &'a mut GradientStock,
    carrier: &'a Mutex<&'b mut dyn Carries>,
    then: Then,
    /// The window that is written.
    window: usize,
    /// Whether all that was looked at was finite.
    is_finite: bool,
}

/// What becomes of a window that is final.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// It goes to those who hold it, in this round.
    Exchanged(Round),
    /// It is looked at, whether all of it is finite, and forgotten.
    LookedAt,
}

impl<'a, 'b> WindowedGradient<'a, 'b> {
    /// One of which nothing is written.
    pub fn new(stock: &'a mut GradientStock, carrier: &'a Mutex<&'b mut dyn Carries>, then: Then) -> Self {
        Self { stock, carrier, then, window: 0, is_finite: true }
    }

    /// Whether all that was looked at was finite.
    pub fn is_finite(&self) -> bool {
        self.is_finite
    }

    /// Whether the host's memory is written, which is only looked at, where windows lie on a device.
    fn is_looked_at(&self) -> bool {
        matches!(self.then, Then::LookedAt) && self.stock.looked_at.is_some()
    }

    /// That memory, for this window: its replica writes one as a whole before the next.
    fn looked_at(&mut self, window: usize) -> &mut Flat {
        let len = self.stock.windows.all()[window].elements.len();
        let memory = self.stock.looked_at.as_mut().expect("it was looked for");
        if memory.len() < len {
            *memory = Flat::zeros(len);
        }
        memory
    }

    /// The window in which elements lie that are not final, and where in it.
    fn place(&self, part: &Range<usize>) -> (usize, Range<usize>) {
        let window = self.stock.windows.window_of(self.window, part);
        let start = self.stock.windows.all()[window].elements.start;
        (window, part.start - start..part.end - start)
    }

    /// The memory of a window. *Blocks* until one that travels has arrived, if there is none.
    fn memory(&mut self, window: usize) -> &mut Option<Memory> {
        while self.stock.place(window).is_none() {
            let parcel = self.carrier.lock().unwrap_or_else(PoisonError::into_inner).exchanged();
            self.stock.take_back(parcel);
        }
        self.stock.place(window)
    }
}

impl Gradient for WindowedGradient<'_, '_> {
    fn elements(&self) -> usize {
        self.stock.windows.all().first().map_or(0, |last| last.elements.end)
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        if part.is_empty() {
            return &mut [];
        }
        let (window, place) = self.place(&part);
        if self.is_looked_at() {
            return &mut self.looked_at(window)[place];
        }
        let memory = self.memory(window).as_mut().expect("it was waited for");
        &mut memory.home_mut()[place]
    }

    fn part_there(&mut self, part: Range<usize>) -> Option<(DeviceMemory, Range<usize>)> {
        if self.stock.looked_at.is_none() || self.is_looked_at() || part.is_empty() {
            return None;
        }
        let (window, place) = self.place(&part);
        let memory = self.memory(window).as_ref().expect("it was waited for");
        Some((memory.there().expect("all of it is there").clone(), place))
    }

    fn settle(&mut self, from: usize) {
        while self.stock.windows.all().get(self.window).is_some_and(|next| from <= next.elements.start) {
            let (window, then) = (self.window, self.then);
            let elements = self.stock.windows.all()[window].elements.len();
            match then {
                Then::Exchanged(round) => {
                    let memory = self.memory(window).take().expect("it was waited for");
                    let mut carrier = self.carrier.lock().unwrap_or_else(PoisonError::into_inner);
                    carrier.exchange(Parcel { window, memory }, round);
                }
                Then::LookedAt => {
                    let memory: &[f32] = match self.is_looked_at() {
                        true => self.looked_at(window),
                        false => self.memory(window).as_ref().expect("it was waited for").home(),
                    };
                    self.is_finite &= memory[..elements].iter().all(|x| x.is_finite());
                }
            }
            self.window += 1;
        }
    }
}
