//! The history of one volume, and its forecasts.

use super::{Histories, REGIONS_MAX};
use crate::shared::{ForecastScore, ForecastStatus, LearnState, LearnStatus, Shared, Volume};
use forebay_format::{HistoryFile, history_bytes};
use forebay_policy::{AccessHistory, Confidence, ConfidenceChange, Demand, Forecast, Needs};
use forebay_types::{Granule, LINE_BYTES, SLOTS_PER_WEEK, Size, TimeSlot};
use std::sync::{Arc, Weak};

/// A forecast that was preloaded.
struct Planned {
    slot: TimeSlot,
    /// The volume's counts of lines in forecasts and of used ones, before this preload.
    before: (u64, u64),
    /// The warm-up was preloading lines as well, so the use of preloaded lines says nothing about
    /// the forecast.
    is_mixed: bool,
}

/// The history of one volume.
pub(super) struct Learned {
    volume: Weak<Volume>,
    name: String,
    history: AccessHistory,
    confidence: Confidence,
    /// The current slot is observed from its beginning.
    is_whole: bool,
    /// The slot that was forecast last, and the bytes of that forecast.
    forecast_slot: Option<TimeSlot>,
    forecast_bytes: u64,
    /// What was preloaded for the current slot, or for the next one.
    planned: Option<Planned>,
    /// The granules of the forecasts that were not preloaded: those of the current slot, and
    /// (`compared_next`) of the next one.
    compared: Vec<Granule>,
    compared_next: Vec<Granule>,
    /// The history could not be written, which was logged.
    is_unwritable: bool,
    status: LearnStatus,
}

impl Learned {
    /// Reads the history of a volume. One that cannot be used is put aside, and a new one begins.
    pub(super) fn load(
        volume: &Arc<Volume>,
        histories: &dyn Histories,
        regions_max: usize,
    ) -> Self {
        let name = &volume.name;
        let file = match read(volume, histories) {
            Ok(file) => file,
            Err((error, is_readable)) => {
                // A file that cannot be read stays: the next write replaces it.
                let moved = is_readable.then(|| histories.put_aside(name));
                let (moved_to, move_error) = match moved {
                    Some(Ok(path)) => (Some(path), None),
                    Some(Err(error)) => (None, Some(error.to_string())),
                    None => (None, None),
                };
                tracing::warn!(
                    volume = name,
                    error,
                    moved_to,
                    move_error,
                    "access history ignored, starting a new one"
                );
                None
            }
        };
        let (history, confidence) = match file {
            Some(HistoryFile { slots, level, .. }) => {
                let history = AccessHistory::restored(slots, regions_max);
                let (slots, regions) = (history.observed_count(), history.region_count());
                tracing::info!(volume = name, slots, regions, "access history loaded");
                (history, Confidence::at_level(level))
            }
            None => (AccessHistory::new(regions_max), Confidence::default()),
        };
        Self {
            volume: Arc::downgrade(volume),
            name: name.clone(),
            history,
            confidence,
            is_whole: false,
            forecast_slot: None,
            forecast_bytes: 0,
            planned: None,
            compared: Vec::new(),
            compared_next: Vec::new(),
            is_unwritable: false,
            status: LearnStatus::default(),
        }
    }

    pub(super) fn is_of(&self, volume: &Arc<Volume>) -> bool {
        self.volume.as_ptr() == Arc::as_ptr(volume)
    }

    /// The name of the volume, which may have been removed.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The volume, while its history is kept.
    pub(super) fn volume(&self) -> Option<Arc<Volume>> {
        self.volume.upgrade().filter(|volume| volume.learn.is_on())
    }

    pub(super) fn set_regions_max(&mut self, regions_max: usize) {
        self.history.set_regions_max(regions_max);
        if let Some(volume) = self.volume() {
            volume.learn.set_regions_max(regions_max);
        }
    }

    /// The bytes of the forecast of a slot. `None` if it was not made yet.
    pub(super) fn forecast_bytes(&self, slot: TimeSlot) -> Option<u64> {
        self.forecast_slot.filter(|forecast| *forecast == slot).map(|_| self.forecast_bytes)
    }

    /// Forgets that a slot was forecast: after a jump of the clock, another one may be next.
    pub(super) fn forget_forecast(&mut self) {
        self.forecast_slot = None;
    }

    /// Discards the current slot: a part of it was not observed, or its time is unclear.
    pub(super) fn discard(&mut self, is_next_whole: bool) {
        self.is_whole = is_next_whole;
        self.compared = std::mem::take(&mut self.compared_next);
    }

    /// Learns what was needed in a slot that has ended, and writes the history.
    pub(super) fn observe(
        &mut self,
        slot: TimeSlot,
        needs: &Needs,
        volume: &Volume,
        histories: &dyn Histories,
    ) {
        let compared = std::mem::take(&mut self.compared);
        self.compared = std::mem::take(&mut self.compared_next);
        if !std::mem::replace(&mut self.is_whole, true) {
            return;
        }
        if self.confidence.is_paused() {
            let lines = compared.iter().map(|granule| u64::from(granule.line_count())).sum();
            let needed = compared.iter().map(|granule| needs.lines_of(granule)).sum();
            self.record_score(volume, lines, needed);
        }
        let regions_before = self.history.region_count();
        let is_new = self.history.observe(slot, needs);
        let is_empty = regions_before == 0 && self.history.region_count() == 0;
        if is_new && !is_empty {
            self.write(volume, histories);
        }
    }

    fn write(&mut self, volume: &Volume, histories: &dyn Histories) {
        let file = HistoryFile {
            disk: volume.warm.disk(),
            level: self.confidence.level(),
            slots: self.history.slots().to_vec(),
        };
        match histories.write(&volume.name, &file.encode()) {
            Ok(()) => self.is_unwritable = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_unwritable, true) {
                    tracing::warn!(volume = volume.name, %error, "cannot write the access history");
                }
            }
        }
    }

    /// Scores the forecast of the current slot, ten minutes after its beginning.
    pub(super) fn score(&mut self, present: TimeSlot, shared: &Shared, volume: &Volume) {
        let Some(planned) = self.planned.take_if(|planned| planned.slot == present) else {
            return;
        };
        let now = shared.shards.forecast_lines(volume.id);
        let preloaded_lines = now.0.saturating_sub(planned.before.0);
        let used_lines = now.1.saturating_sub(planned.before.1).min(preloaded_lines);
        if preloaded_lines == 0 {
            return;
        }
        self.status.score = Some(ForecastScore { slot: present, preloaded_lines, used_lines });
        tracing::info!(
            volume = volume.name,
            slot = %present,
            preloaded = %Size(preloaded_lines * LINE_BYTES),
            used = %Size(used_lines * LINE_BYTES),
            "forecast scored"
        );
        if !planned.is_mixed {
            self.record_score(volume, preloaded_lines, used_lines);
        }
    }

    fn record_score(&mut self, volume: &Volume, lines: u64, used_lines: u64) {
        let change = self.confidence.record(lines, used_lines);
        let Demand { days, weeks } = self.confidence.demand();
        let used_percent = used_lines.saturating_mul(100) / lines.max(1);
        let what = match change {
            None => return,
            Some(_) if self.confidence.is_paused() => "preloads are hardly used, paused",
            Some(ConfidenceChange::Stricter) => {
                "preloads are hardly used, more repeats are required"
            }
            Some(ConfidenceChange::Looser) => "forecasts are used, fewer repeats are required",
        };
        tracing::info!(volume = volume.name, used_percent, days, weeks, "{what}");
    }

    /// What a slot probably needs, within a budget.
    pub(super) fn forecast(&self, slot: TimeSlot, budget_bytes: u64) -> Forecast {
        self.history.forecast(slot, self.confidence.demand(), budget_bytes)
    }

    /// Accepts the forecast of the next slot. While paused, the forecast is only compared with the
    /// needs later. Returns the granules to preload.
    pub(super) fn plan(
        &mut self,
        slot: TimeSlot,
        forecast: Forecast,
        shared: &Shared,
        volume: &Volume,
    ) -> Vec<Granule> {
        (self.forecast_slot, self.forecast_bytes) = (Some(slot), forecast.bytes);
        if forecast.granules.is_empty() && forecast.bytes_left == 0 {
            return Vec::new();
        }
        let daily_regions = forecast.daily_regions;
        let weekly_regions = forecast.regions.checked_sub(daily_regions);
        let weekly_regions = weekly_regions.expect("each region is forecast once");
        let status = ForecastStatus {
            slot,
            bytes: forecast.bytes,
            bytes_left: forecast.bytes_left,
            daily_regions,
            weekly_regions,
        };
        self.status.forecast = Some(status);
        let Demand { days, weeks } = self.confidence.demand();
        let is_paused = self.confidence.is_paused();
        tracing::info!(
            volume = volume.name,
            %slot,
            bytes = %Size(forecast.bytes),
            beyond_budget = %Size(forecast.bytes_left),
            daily_regions,
            weekly_regions,
            days_required = days,
            weeks_required = weeks,
            preloads = !is_paused,
            "forecast made"
        );
        if is_paused {
            self.compared_next = forecast.granules;
            return Vec::new();
        }
        let before = shared.shards.forecast_lines(volume.id);
        let is_mixed = volume.warm.is_loading();
        self.planned = Some(Planned { slot, before, is_mixed });
        forecast.granules
    }

    /// Publishes the status.
    pub(super) fn publish(&mut self, slot: TimeSlot, volume: &Volume) {
        let Demand { days, weeks } = self.confidence.demand();
        let state = if self.is_unwritable {
            LearnState::Unwritable
        } else if self.confidence.is_paused() {
            LearnState::Paused
        } else {
            LearnState::Learning
        };
        self.status = LearnStatus {
            state,
            slot: Some(slot),
            observed_slots: self.history.observed_count(),
            regions: self.history.region_count(),
            days_demanded: days,
            weeks_demanded: weeks,
            ..self.status
        };
        volume.learn.set_status(self.status);
    }
}

/// Reads the history of a volume, and checks it. `None` if there is none. An error comes with
/// whether the file is to be put aside.
fn read(volume: &Volume, histories: &dyn Histories) -> Result<Option<HistoryFile>, (String, bool)> {
    // A history from a larger pool may be longer.
    let bytes_max = history_bytes(SLOTS_PER_WEEK, REGIONS_MAX);
    let bytes = histories.read(&volume.name, bytes_max).map_err(|error| {
        // A file that is too long can be put aside as well.
        (error.to_string(), error.kind() == std::io::ErrorKind::FileTooLarge)
    })?;
    let Some(bytes) = bytes else { return Ok(None) };
    let file = HistoryFile::decode(&bytes).map_err(|error| (error.to_string(), true))?;
    file.check(&volume.warm.disk()).map_err(|error| (error.to_string(), true))?;
    Ok(Some(file))
}
