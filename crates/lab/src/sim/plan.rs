//! The plan of a run: the machine, its disks and its clients, drawn from the seed.
//!
//! Each seed disables some features and exaggerates others (swarm testing): a run that does a
//! little of everything hides bugs that need a lot of one thing.

use super::journal::JournalPlan;
use super::power::PowerPlan;
use super::resize::ResizePlan;
use crate::harness::Sabotage;
use crate::harness::dice::{Dice, Ppm};
use crate::policies::PolicyKind;
use forebay_engine::ShardConfig;
use forebay_policy::Pace;
use forebay_types::{ByteRange, LINE_BYTES, Mode, SECTOR_BYTES, Stripes, VolumeId};
use forebay_volume::{Request, RequestKind};

/// The number of weights in [`Plan::mix`].
pub(crate) const KINDS: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub workers: u8,
    pub shards: usize,
    pub lines_per_shard: usize,
    pub policy: PolicyKind,
    pub config: ShardConfig,
    pub volumes: Vec<VolumePlan>,
    /// The journal of the volumes that have one.
    pub journal: JournalPlan,
    /// The UPS of the volumes that have one.
    pub power: PowerPlan,
    /// Weights of read, write, write with FUA, flush, trim, zero, prefetch, and once more write. A
    /// tenth of all writes without FUA is read back.
    pub mix: [u32; KINDS],
    pub clients: usize,
    /// Weights of lengths: up to a line, one line, up to 64 KiB, up to 2 MiB.
    pub sizes: [u32; 4],
    /// Weights of positions: random, hot lines, behind the client's last request.
    pub places: [u32; 3],
    pub hot_lines: u64,
    /// The maximum pause of a client after an answer, in microseconds.
    pub think_us_max: u64,
    pub device: DevicePlan,
    /// The share of replies that keep their pins for a while, and the maximum time.
    pub slow_reply: Ppm,
    pub slow_reply_us_max: u64,
    /// The share of writes that hand over their memory instead of lending it.
    pub owned_payload: Ppm,
    /// The share of writes whose payload is received into the pool, and the maximum time for that.
    pub staged_payload: Ppm,
    pub staged_payload_us_max: u64,
    /// The probabilities per request of a change of mode, and of dropping clean lines.
    pub mode_change: Ppm,
    pub drop_clean: Ppm,
    pub tick_us: u64,
    pub forward_us_max: u64,
    /// Whether adjacent I/Os are coalesced.
    pub merge: bool,
    /// The numbers of requests after which the process crashes; true if the power fails, too.
    pub crashes: Vec<(u64, bool)>,
    /// The numbers of requests after which the process is killed and leaves its pool behind.
    pub kills: Vec<u64>,
    /// The probability of another crash after each step of a recovery.
    pub crash_in_recovery: Ppm,
    /// Resizes of the pool.
    pub resize: ResizePlan,
}

#[derive(Clone, Debug)]
pub(crate) struct VolumePlan {
    /// A multiple of `block_sectors`.
    pub sectors: u64,
    pub block_sectors: u64,
    pub mode: Mode,
    pub journal: bool,
    /// Whether a UPS protects it while no journal does.
    pub ups: bool,
    pub ordered: bool,
    pub streams: bool,
    pub stripes: Stripes,
}

#[derive(Clone, Debug)]
pub(crate) struct DevicePlan {
    pub latency_us_min: u64,
    pub latency_us_max: u64,
    /// The probability of an I/O that takes up to 100 s.
    pub stall: Ppm,
    pub read_error: Ppm,
    pub write_error: Ppm,
    pub flush_error: Ppm,
    pub erase_error: Ppm,
    /// Sectors with read or write errors until they are healed.
    pub bad_sectors: u32,
    /// The probability that a written unit of the volatile cache reaches stable storage by itself.
    pub write_behind: Ppm,
    /// The probability that a unit of the volatile cache survives a power failure.
    pub survive: Ppm,
}

impl VolumePlan {
    fn describe(&self) -> String {
        let kept = match (self.journal, self.ups) {
            (true, true) => " in a journal and under a UPS",
            (true, false) => " in a journal",
            (false, true) => " under a UPS",
            (false, false) => "",
        };
        let block_bytes = self.block_bytes();
        format!("{} sectors in blocks of {block_bytes}, {}{kept}", self.sectors, self.mode)
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES
    }

    pub(crate) const fn block_bytes(&self) -> u64 {
        self.block_sectors * SECTOR_BYTES
    }

    /// The minimum size of writes that are not held back, in bytes. It follows from the size of the
    /// volume and draws nothing, so that it does not change the machine of a seed.
    pub(crate) const fn gather_below(&self) -> u64 {
        [u64::MAX, u64::MAX, 64 << 10, 8 << 10, LINE_BYTES, 0][(self.sectors % 6) as usize]
    }
}

impl Plan {
    pub(crate) fn volume(&self, volume: VolumeId) -> &VolumePlan {
        &self.volumes[usize::from(volume.0)]
    }

    pub(crate) fn volume_ids(&self) -> Vec<VolumeId> {
        (0..self.volumes.len()).map(|at| VolumeId(at as u16)).collect()
    }

    /// The ranges that a request changes. A trim changes only whole blocks of each region.
    pub(crate) fn changed_by(&self, request: Request) -> Vec<ByteRange> {
        let RequestKind::Trim { .. } = request.kind else { return vec![request.range] };
        let volume = self.volume(request.volume);
        let block_bytes = volume.block_bytes();
        let whole = |piece: ByteRange| {
            let start = piece.offset.next_multiple_of(block_bytes);
            let end = piece.end() / block_bytes * block_bytes;
            ByteRange::new(start, end.saturating_sub(start))
        };
        volume.stripes.split(request.range).map(whole).collect()
    }

    /// The volumes that only a UPS protects, which includes those of an abandoned journal.
    pub(crate) fn ups_volumes(&self, is_abandoned: bool) -> Vec<VolumeId> {
        let mut volumes = self.volume_ids();
        volumes.retain(|&id| self.is_ups_only(id, is_abandoned));
        volumes
    }

    /// Whether only a UPS protects a volume.
    pub(crate) fn is_ups_only(&self, volume: VolumeId, is_abandoned: bool) -> bool {
        let volume = self.volume(volume);
        volume.ups && (is_abandoned || !volume.journal)
    }

    /// Whether a volume has both a journal and a UPS.
    pub(crate) fn has_both(&self) -> bool {
        self.volumes.iter().any(|volume| volume.journal && volume.ups)
    }

    /// Gives a UPS to some volumes with a journal, if power failures are bridged.
    pub(crate) fn draw_both(&mut self, dice: &mut Dice) {
        if self.power.fails_unbridged || !dice.chance(400_000) {
            return;
        }
        for volume in &mut self.volumes {
            volume.ups |= volume.journal && dice.chance(700_000);
        }
        if self.has_both() {
            self.journal.error = self.journal.error.max(dice.pick(&[0, 5_000, 30_000]));
        }
    }

    /// Whether clients of the same volume continue at a common position, like those of one program.
    /// This draws nothing, so that it does not change the machine of a seed.
    pub(crate) const fn side_by_side(&self) -> bool {
        self.lines_per_shard.is_multiple_of(3)
    }

    /// Turns half of the machines in which [`Plan::side_by_side`] is true into machines with many
    /// small writes to striped disks, and without bypassed volumes.
    fn favor_gathering(&mut self) {
        if !self.lines_per_shard.is_multiple_of(6) {
            return;
        }
        (self.clients, self.places) = (self.clients.max(12), [1, 1, 12]);
        self.sizes = [3, 6, 1, 0];
        self.mix[1] = self.mix[1].max(400);
        self.device.latency_us_max = self.device.latency_us_max.max(200);
        if self.lines_per_shard.is_multiple_of(12) {
            self.device.write_error = self.device.write_error.max(50_000);
        }
        for volume in &mut self.volumes {
            volume.stripes = Stripes::new((8 + volume.sectors % 57) * LINE_BYTES, 0);
            if volume.mode == Mode::Bypass {
                volume.mode = Mode::WriteThrough;
            }
        }
    }

    /// Draws the resizes of the pool, and the size of its slabs.
    pub(crate) fn draw_resizes(&mut self, dice: &mut Dice, sizes_itself: bool) {
        (self.resize, self.config.slab_lines) = ResizePlan::draw(dice);
        if sizes_itself {
            self.resize = self.resize.without_changes();
            // A pool that sizes itself consists of whole slabs.
            while !self.lines_per_shard.is_multiple_of(self.config.slab_lines) {
                self.config.slab_lines /= 2;
            }
        }
    }

    /// Gives half of the disks larger blocks: 4 KiB, like many disks, or 64 KiB, which NBD servers
    /// may require.
    pub(crate) fn draw_blocks(&mut self, dice: &mut Dice) {
        for volume in &mut self.volumes {
            volume.block_sectors = dice.pick(&[1, 1, 1, 8, 8, 128]);
            volume.sectors = volume.sectors.next_multiple_of(volume.block_sectors);
        }
    }

    /// Draws a machine; `operations` limits the time of crashes.
    pub(crate) fn draw(dice: &mut Dice, operations: u64) -> Self {
        let lines = dice.skewed(16, 512) as usize;
        let shards = dice.pick(&[1, 1, 2, 3, 4]).min(lines / 4);
        let lines_per_shard = lines / shards;
        let clients = dice.skewed(1, 32) as usize;
        let mut plan = Self {
            workers: dice.range(1, 3) as u8,
            shards,
            lines_per_shard,
            policy: dice.pick(&PolicyKind::ALL),
            config: draw_config(dice, lines_per_shard),
            volumes: (0..dice.range(1, 4)).map(|_| draw_volume(dice)).collect(),
            journal: JournalPlan::draw(dice),
            power: PowerPlan::draw(dice),
            mix: draw_mix(dice),
            clients,
            sizes: dice.pick(&[
                [10, 10, 4, 0],
                [1000, 1000, 300, 3],
                [1, 0, 0, 0],
                [0, 1, 0, 0],
                [5, 5, 20, 0],
                [400, 400, 100, 10],
            ]),
            places: dice.pick(&[[4, 4, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 4, 8], [1, 9, 0]]),
            hot_lines: dice.skewed(1, 64),
            think_us_max: dice.pick(&[0, 0, 50, 2000]),
            device: draw_device(dice),
            slow_reply: dice.pick(&[0, 20_000, 300_000, 1_000_000]),
            slow_reply_us_max: dice.pick(&[100, 5_000, 100_000]),
            owned_payload: dice.pick(&[0, 500_000, 1_000_000]),
            staged_payload: dice.pick(&[0, 200_000, 900_000]),
            staged_payload_us_max: dice.pick(&[0, 1_000, 100_000]),
            mode_change: dice.pick(&[0, 0, 2_000, 20_000]),
            drop_clean: dice.pick(&[0, 0, 0, 5_000]),
            tick_us: dice.pick(&[500, 5_000, 50_000]),
            forward_us_max: dice.pick(&[0, 5, 500]),
            merge: dice.chance(500_000),
            crashes: draw_crashes(dice, operations),
            crash_in_recovery: dice.pick(&[0, 1_000, 50_000]),
            kills: draw_kills(dice, operations),
            resize: ResizePlan::NONE,
        };
        plan.favor_gathering();
        // This draws nothing, so that it does not change the machine of a seed.
        plan.power.fails_unbridged = plan.lines_per_shard % 2 == 1;
        plan
    }

    /// Draws the length of a request, in sectors.
    pub(crate) fn draw_sectors(&self, dice: &mut Dice) -> u64 {
        match dice.weighted(&self.sizes) {
            0 => dice.range(1, 8),
            1 => 8,
            2 => dice.range(1, (64 << 10) / SECTOR_BYTES),
            _ => dice.range(1, (2 << 20) / SECTOR_BYTES),
        }
    }

    pub(crate) fn describe(&self, sabotage: Option<Sabotage>) -> String {
        let volumes: Vec<String> = self.volumes.iter().map(VolumePlan::describe).collect();
        format!(
            "{} workers, {} shards of {} lines, {}, {} clients, {}; volumes: {}",
            self.workers,
            self.shards,
            self.lines_per_shard,
            self.policy,
            self.clients,
            sabotage.map_or("no planted bug", Sabotage::name),
            volumes.join(", ")
        )
    }

    /// Changes the machine so that it can show a planted bug that few machines show.
    pub(crate) fn adapt_to_bug(&mut self, bug: Option<Sabotage>, operations: u64) {
        match bug {
            Some(Sabotage::SkipForward) => self.favor_skipped_forward(operations),
            Some(Sabotage::KeepOldRecords) => self.favor_old_records(operations),
            Some(Sabotage::IgnoreBarrier) => self.favor_ignored_barrier(operations),
            Some(Sabotage::HaltLate | Sabotage::SkipVaultLine) => self.favor_dumps(operations),
            Some(Sabotage::ResumeEarly | Sabotage::EmptyVaultEarly) => {
                self.favor_dumps(operations);
                (self.power.events_between_max, self.power.death_at_emptying) = (80, 500_000);
            }
            Some(Sabotage::DumpOnce) => {
                self.favor_dumps(operations);
                self.volumes.iter_mut().for_each(|volume| volume.journal = true);
            }
            Some(Sabotage::SkipMark) => self.favor_skipped_mark(operations),
            Some(Sabotage::SkipMemberRecord) => self.favor_skipped_member_record(operations),
            Some(Sabotage::IgnoreUnrecordedLoss) => self.favor_unrecorded_loss(operations),
            Some(Sabotage::RecordLost | Sabotage::RestoreOlder) => {
                self.favor_adoptions(operations);
            }
            _ => {}
        }
    }

    /// Puts the first volume into write-back with a journal.
    fn protect_first_volume(&mut self) {
        let volume = &mut self.volumes[0];
        (volume.journal, volume.ups, volume.mode) = (true, false, Mode::WriteBack);
    }

    /// Makes the journal slow and free of errors; only flushes wait for it.
    const fn slow_down_journal(&mut self) {
        let journal = &mut self.journal;
        (journal.ack, journal.latency_us_max, journal.error) = (false, 5_000, 0);
    }

    /// Makes power fail between `parts` equal parts of the run, and removes all other crashes and
    /// kills.
    fn fail_power(&mut self, parts: u64, operations: u64) {
        self.crashes = (1..parts).map(|at| (operations * at / parts, true)).collect();
        self.kills.clear();
    }

    /// A disk that is faster than the journal, so that data is often on the disk before its record
    /// is durable; kills, each followed by a power failure.
    fn favor_old_records(&mut self, operations: u64) {
        self.slow_down_journal();
        self.device = DevicePlan { latency_us_min: 0, latency_us_max: 0, ..self.device.clone() };
        (self.device.bad_sectors, self.device.stall) = (0, 0);
        (self.tick_us, self.config.dirty_age_ms) = (500, 1);
        self.sizes = [0, 1, 0, 0];
        (self.places, self.hot_lines) = ([0, 1, 0], 8);
        self.volumes.truncate(1);
        self.protect_first_volume();
        (self.volumes[0].ordered, self.mode_change) = (true, 0);
        self.kills = (1..20).map(|at| operations * at / 20).collect();
        self.crashes = self.kills.iter().map(|at| (at + operations / 100, true)).collect();
    }

    /// A slow journal that only flushes wait for, writes to few lines, and kills.
    fn favor_adoptions(&mut self, operations: u64) {
        self.slow_down_journal();
        self.config.dirty_age_ms = 5_000;
        (self.places, self.hot_lines) = ([0, 1, 0], 64);
        self.protect_first_volume();
        self.kills = (1..20).map(|at| operations * at / 20).collect();
        self.crashes.clear();
    }

    /// A slow journal that only flushes wait for, many flushes, and power failures.
    fn favor_ignored_barrier(&mut self, operations: u64) {
        self.slow_down_journal();
        self.mix[3] = self.mix[3].max(100);
        self.protect_first_volume();
        self.fail_power(16, operations);
    }

    /// A UPS that bridges many power failures, and a slow disk.
    fn favor_dumps(&mut self, operations: u64) {
        self.power.fails_unbridged = false;
        (self.power.dirty_lines_max, self.power.toggle) = (u64::MAX / LINE_BYTES, 100_000);
        self.device.latency_us_max = self.device.latency_us_max.max(1_000);
        self.config.dirty_age_ms = 5_000;
        for volume in &mut self.volumes {
            (volume.journal, volume.ups, volume.mode) = (false, true, Mode::WriteBack);
        }
        self.fail_power(16, operations);
    }

    /// A journal that fails and is not replaced, and power failures.
    fn favor_skipped_mark(&mut self, operations: u64) {
        let journal = &mut self.journal;
        (journal.error, journal.replaced, journal.mirrored) = (5_000, false, false);
        self.protect_first_volume();
        self.fail_power(8, operations);
    }

    /// A mirrored journal whose devices fail occasionally, power failures, and starts that often
    /// find only one device.
    fn favor_skipped_member_record(&mut self, operations: u64) {
        let journal = &mut self.journal;
        (journal.mirrored, journal.device_error, journal.missing) = (true, 2_000, 900_000);
        (journal.error, journal.ack) = (0, true);
        self.protect_first_volume();
        self.fail_power(8, operations);
    }

    /// A mirrored journal whose devices fail often. Only flushes wait for it, and few clients
    /// flush, so that often no record follows the loss of a device. Power fails often, and starts
    /// often find only one device.
    fn favor_unrecorded_loss(&mut self, operations: u64) {
        let journal = &mut self.journal;
        (journal.mirrored, journal.device_error, journal.missing) = (true, 100_000, 900_000);
        (journal.ack, journal.latency_us_max, journal.error) = (false, 100, 0);
        (self.clients, self.mix[3]) = (self.clients.min(4), self.mix[3].max(400));
        self.protect_first_volume();
        self.fail_power(64, operations);
    }

    fn favor_skipped_forward(&mut self, operations: u64) {
        // A small log that wraps often, a disk with bad sectors, and power failures.
        let journal = &mut self.journal;
        (journal.buffer_bytes, journal.segment_bytes) = (16 << 10, 16 << 10);
        (journal.segments, journal.buffers, journal.error) = (16, 2, 0);
        journal.checkpoint = 300_000;
        self.device.bad_sectors = 6;
        self.protect_first_volume();
        self.fail_power(4, operations);
    }
}

fn draw_config(dice: &mut Dice, lines: usize) -> ShardConfig {
    let mut config = ShardConfig::for_slots(lines);
    if dice.chance(500_000) {
        config.dirty_lines_max = dice.range(0, lines as u64) as usize;
        config.dirty_lines_background = dice.range(0, lines as u64) as usize;
    }
    config.dirty_age_ms = dice.pick(&[1, 20, 300, 5_000]);
    config.destage_operations_max = dice.pick(&[1, 2, 4, 16]);
    config.destage_operations_all = 2 * config.destage_operations_max;
    config
}

/// Draws the pace of writeback until the next tick.
pub(super) fn draw_pace(dice: &mut Dice) -> Pace {
    let mut rate = |likely| if dice.chance(likely) { u64::MAX } else { dice.below(1_000_000) };
    let (beside_reads_milli, ios_milli, bytes) = (rate(300_000), rate(800_000), rate(800_000));
    Pace { beside_reads_milli, ios_milli, bytes, in_flight: dice.below(5) as u32 }
}

fn draw_volume(dice: &mut Dice) -> VolumePlan {
    // Most volumes are small, so that requests overlap; some span several regions, and one in two
    // hundred has more regions than one erase may have parts.
    let lines = match dice.weighted(&[60, 80, 59, 1]) {
        0 => dice.skewed(1, 64),
        1 => dice.range(16, 320),
        2 => dice.range(257, 1400),
        _ => dice.range(65 * 256, 70 * 256),
    };
    // Half of the volumes end within a line.
    let odd = if dice.chance(500_000) { dice.range(0, 7) } else { 0 };
    let journal = dice.chance(500_000);
    VolumePlan {
        sectors: lines * 8 - odd,
        block_sectors: 1,
        mode: dice.pick(&[Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough, Mode::Bypass]),
        journal,
        ups: !journal && dice.chance(300_000),
        ordered: dice.chance(300_000),
        streams: dice.chance(500_000),
        stripes: draw_stripes(dice),
    }
}

fn draw_stripes(dice: &mut Dice) -> Stripes {
    let lines = match dice.below(4) {
        0 => dice.skewed(1, 64),
        1 => dice.range(200, 600),
        _ => return Stripes::NONE,
    };
    let offset = if dice.chance(500_000) { dice.below(lines) } else { 0 };
    Stripes::new(lines * LINE_BYTES, offset * LINE_BYTES)
}

fn draw_mix(dice: &mut Dice) -> [u32; KINDS] {
    // Read, write, FUA, flush, trim, zero, prefetch, write.
    let mut mix = [400, 400, 20, 20, 15, 15, 15, 40];
    for (kind, weight) in mix.iter_mut().enumerate() {
        match dice.below(4) {
            // In a volume without flushes, the oracle would have to keep every write.
            0 if kind == 3 => *weight = 4,
            0 => *weight = 0,
            1 => *weight *= 4,
            _ => {}
        }
    }
    if mix[0] + mix[1] + mix[2] == 0 {
        mix[1] = 400;
    }
    mix
}

fn draw_device(dice: &mut Dice) -> DevicePlan {
    let latency_us_min = dice.pick(&[0, 10, 100]);
    let faulty = dice.chance(600_000);
    let mut error = |rates: &[Ppm]| if faulty { dice.pick(rates) } else { 0 };
    DevicePlan {
        latency_us_min,
        read_error: error(&[0, 1_000, 50_000]),
        write_error: error(&[0, 1_000, 50_000]),
        flush_error: error(&[0, 10_000, 200_000]),
        erase_error: error(&[0, 10_000, 200_000]),
        bad_sectors: error(&[0, 0, 1, 6]),
        stall: error(&[0, 0, 1_000]),
        latency_us_max: latency_us_min + dice.pick(&[0, 50, 1_000, 10_000]),
        write_behind: dice.pick(&[0, 100_000, 900_000]),
        survive: dice.pick(&[0, 300_000, 800_000]),
    }
}

fn draw_crashes(dice: &mut Dice, operations: u64) -> Vec<(u64, bool)> {
    let count = dice.pick(&[0, 0, 1, 3]);
    let mut at: Vec<(u64, bool)> = (0..count)
        .map(|_| (dice.below(operations.min(u64::from(u32::MAX))), dice.chance(500_000)))
        .collect();
    at.sort_unstable();
    at
}

fn draw_kills(dice: &mut Dice, operations: u64) -> Vec<u64> {
    let count = dice.pick(&[0, 1, 4]);
    let mut at: Vec<u64> =
        (0..count).map(|_| dice.below(operations.min(u64::from(u32::MAX)))).collect();
    at.sort_unstable();
    at
}
