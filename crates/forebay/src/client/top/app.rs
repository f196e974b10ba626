//! The state of `forebay top`: the answers of the server, and what is selected and shown. It uses
//! neither the terminal nor the clock.

use crate::client::status::figures::{Figures, Readings, View};
use forebay_api::{HistoryPoint, Status, VolumeState};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// The samples that are kept of each volume: as many as a very wide terminal shows.
const SAMPLES_MAX: usize = 480;

/// The figures of one interval, for sparklines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TopSample {
    pub(super) requests_per_second: f64,
    /// The part of the requests that memory served; `None` without requests.
    pub(super) hit_ratio: Option<f64>,
}

/// The last samples, the newest at the end.
pub(super) type History = VecDeque<TopSample>;

/// The order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Requests,
    Hits,
    Misses,
    Dirty,
    Cached,
    Name,
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Requests => Self::Hits,
            Self::Hits => Self::Misses,
            Self::Misses => Self::Dirty,
            Self::Dirty => Self::Cached,
            Self::Cached => Self::Name,
            Self::Name => Self::Requests,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Hits => "hit %",
            Self::Misses => "latency of misses",
            Self::Dirty => "dirty",
            Self::Cached => "cached",
            Self::Name => "name",
        }
    }
}

/// What is shown below the charts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    List,
    /// One volume in depth, from this line on.
    Volume {
        name: String,
        scroll: usize,
    },
}

/// The action that a key requires, besides a change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Wish {
    Nothing,
    Quit,
    /// Stop the process, as Ctrl-Z does for other programs.
    Suspend,
}

/// The state.
pub(super) struct App {
    readings: Readings,
    pub(super) interval: Duration,
    total: History,
    volumes: HashMap<String, History>,
    /// The volumes whose past was asked for.
    has_past: HashSet<String>,
    pub(super) order: Order,
    /// The name of the selected volume.
    selected: Option<String>,
    pub(super) body: Body,
    pub(super) has_help: bool,
    pub(super) is_paused: bool,
    /// Why the server does not answer.
    pub(super) trouble: Option<String>,
    /// The lines of a page, by which Page Up and Page Down move, as last drawn.
    pub(super) page_lines: usize,
    pub(super) has_color: bool,
}

impl App {
    pub(super) fn new(interval: Duration, has_color: bool) -> Self {
        Self {
            readings: Readings::default(),
            interval,
            total: History::new(),
            volumes: HashMap::new(),
            has_past: HashSet::new(),
            order: Order::Requests,
            selected: None,
            body: Body::List,
            has_help: false,
            is_paused: false,
            trouble: None,
            page_lines: 1,
            has_color,
        }
    }

    /// Takes an answer of the server.
    pub(super) fn add(&mut self, at: Instant, status: Status) {
        self.trouble = None;
        self.readings.add(at, status);
        let Some(view) = self.readings.view() else { return };
        let Some(period) = view.period else { return };
        let sample = |figures: &Figures| TopSample {
            requests_per_second: figures.requests as f64 / period.as_secs_f64(),
            hit_ratio: figures.hit_ratio(),
        };
        push(&mut self.total, sample(&view.total()));
        let samples: HashMap<_, _> =
            view.volumes().map(|(it, figures)| (it.name.clone(), sample(figures))).collect();
        // Volumes that were removed are forgotten.
        self.volumes.retain(|name, _| samples.contains_key(name));
        for (name, sample) in samples {
            push(self.volumes.entry(name).or_default(), sample);
        }
    }

    /// The volume that is shown in depth, if its past is to be asked for: once.
    pub(super) fn wanted_past(&mut self) -> Option<String> {
        let Body::Volume { name, .. } = &self.body else { return None };
        self.has_past.insert(name.clone()).then(|| name.clone())
    }

    /// Takes the past of a volume, or of all, from before the first sample. A point counts as often
    /// as intervals fit into it.
    pub(super) fn add_past(&mut self, name: Option<&str>, points: &[HistoryPoint]) {
        let history = match name {
            None => &mut self.total,
            Some(name) => self.volumes.entry(name.to_owned()).or_default(),
        };
        let newest = points.iter().rev().flat_map(|point| {
            let requests = point.reads + point.writes;
            let served = point.read_hits + point.deferred_writes;
            let sample = TopSample {
                requests_per_second: requests as f64 / point.seconds.max(1) as f64,
                hit_ratio: (requests > 0).then(|| served as f64 / requests as f64),
            };
            let times = (point.seconds as f64 / self.interval.as_secs_f64()).round();
            std::iter::repeat_n(sample, (times as usize).max(1))
        });
        for sample in newest.take(SAMPLES_MAX.saturating_sub(history.len())) {
            history.push_front(sample);
        }
    }

    /// What is known; `None` before the first answer.
    pub(super) fn view(&self) -> Option<View<'_>> {
        self.readings.view()
    }

    /// The samples of all volumes, or of the one that is shown.
    pub(super) fn history(&self) -> &History {
        match &self.body {
            Body::Volume { name, .. } => self.volumes.get(name).unwrap_or(&self.total),
            Body::List => &self.total,
        }
    }

    /// The places of the volumes in the status, in the order of the list. Those that fail come
    /// first.
    pub(super) fn order(&self, view: &View<'_>) -> Vec<usize> {
        let volumes = &view.status.volumes;
        let mut places: Vec<_> = (0..volumes.len()).collect();
        // Whole numbers have a total order; a millionth is exact enough.
        let parts = |value: Option<f64>| value.map(|value| (value * 1e6) as u64);
        places.sort_by_key(|&at| {
            let (volume, figures) = (&volumes[at], &view.figures[at]);
            let key = match self.order {
                Order::Requests => Some(figures.requests),
                Order::Hits => parts(figures.hit_ratio()),
                Order::Misses => parts(figures.miss.mean_us()),
                Order::Dirty => Some(volume.dirty_bytes),
                Order::Cached => Some(volume.cached_bytes),
                Order::Name => None,
            };
            (volume.state == VolumeState::Serving, Reverse(key), &volume.name)
        });
        places
    }

    /// The line of the selected volume in the list; the first one if it is gone.
    pub(super) fn selected(&self, view: &View<'_>, order: &[usize]) -> usize {
        let name = self.selected.as_deref();
        order.iter().position(|&at| Some(&*view.status.volumes[at].name) == name).unwrap_or(0)
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Quit,
                KeyCode::Char('z') => Wish::Suspend,
                _ => Wish::Nothing,
            };
        }
        if std::mem::take(&mut self.has_help) {
            // Any key closes the help.
            return if key.code == KeyCode::Char('q') { Wish::Quit } else { Wish::Nothing };
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.has_help = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Enter => self.enter(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.body = Body::List,
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-self.page_step()),
            KeyCode::PageDown => self.step(self.page_step()),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            _ => {}
        }
        Wish::Nothing
    }

    fn page_step(&self) -> isize {
        isize::try_from(self.page_lines.saturating_sub(1).max(1)).unwrap_or(isize::MAX)
    }

    /// Shows the selected volume in depth, or the list again.
    fn enter(&mut self) {
        let Some(view) = self.readings.view() else { return };
        let order = self.order(&view);
        let at = self.selected(&view, &order);
        self.body = match (&self.body, order.get(at)) {
            (Body::List, Some(&at)) => {
                Body::Volume { name: view.status.volumes[at].name.clone(), scroll: 0 }
            }
            _ => Body::List,
        };
    }

    /// Moves the selection, or scrolls the page of a volume, by this many lines.
    fn step(&mut self, lines: isize) {
        if let Body::Volume { scroll, .. } = &mut self.body {
            *scroll = scroll.saturating_add_signed(lines);
            return;
        }
        let Some(view) = self.readings.view() else { return };
        let order = self.order(&view);
        let last = order.len().saturating_sub(1);
        let at = self.selected(&view, &order).saturating_add_signed(lines).min(last);
        self.selected = order.get(at).map(|&at| view.status.volumes[at].name.clone());
    }
}

fn push(history: &mut History, sample: TopSample) {
    history.push_back(sample);
    if history.len() > SAMPLES_MAX {
        history.pop_front();
    }
}
