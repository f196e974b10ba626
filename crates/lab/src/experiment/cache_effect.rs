//! `cache-effect`: sequential transfers of all sizes, one at a time, on a bare array and through
//! the cache.

use super::machine::{Clients, Link, Machine, MachineStep};
use super::plot::{Plot, Scale, Series};
use super::report::{Report, Table, figure, figure_or_empty};
use forebay_backend::OpenError;
use forebay_types::{ByteRange, Size};

/// The published measurement of an EMC CLARiiON CX3-80 in 2008: transfers of 64 KiB, in MB/s.
const PUBLISHED_BYTES: u64 = 64 << 10;
const PUBLISHED_BEFORE: f64 = 4.6;
const PUBLISHED_AFTER: f64 = 160.9;

#[derive(Clone, Copy, Debug)]
pub(super) struct CacheEffectPlan {
    pub disk: &'static str,
    pub pool_bytes: u64,
    /// The smallest and the largest transfer; the size doubles from one to the next.
    pub len_min: u64,
    pub len_max: u64,
    /// Transfers without the cache: the total size, and the limits of their number.
    pub bare_bytes: u64,
    pub bare_count: (u64, u64),
}

impl CacheEffectPlan {
    pub(super) const FULL: Self = Self {
        disk: "model:raid5?drives=15&chunk=8KiB&drive=hdd&drive-size=128GiB",
        pool_bytes: 512 << 20,
        len_min: 512,
        len_max: 8 << 20,
        bare_bytes: 64 << 20,
        bare_count: (64, 4096),
    };

    fn sizes(&self) -> impl Iterator<Item = u64> {
        let (min, max) = (self.len_min, self.len_max);
        std::iter::successors(Some(min), move |len| (len * 2 <= max).then_some(len * 2))
    }

    fn machine(&self, pool_bytes: u64) -> Result<Machine, OpenError> {
        Machine::new(self.disk, pool_bytes)
    }
}

/// Rates of transfers of one size, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    pub len: u64,
    pub write_bare: f64,
    pub write_burst: f64,
    pub write_sustained: f64,
    pub read_bare: f64,
    pub read_ahead: f64,
    pub read_again: f64,
}

impl Rates {
    /// Whether the writer was limited by the disk in the end.
    pub(super) fn is_full(&self) -> bool {
        self.write_sustained < 0.99 * self.write_burst
    }
}

pub(super) fn run(plan: &CacheEffectPlan) -> Result<Report, OpenError> {
    let rates = plan.sizes().map(|len| measure(plan, len)).collect::<Result<Vec<_>, _>>()?;
    let stripe = plan.machine(0)?.geometry();
    Ok(report(plan, &rates, Size(stripe.stripe_bytes)))
}

/// One client that reads or writes a range from its beginning.
struct Stream {
    is_write: bool,
    len: u64,
    rest: ByteRange,
}

impl Clients for Stream {
    fn next(&mut self, _client: u32, _now_ns: u64) -> MachineStep {
        let len = self.len.min(self.rest.len);
        let range = ByteRange::new(self.rest.offset, len);
        self.rest = ByteRange::new(range.end(), self.rest.len - len);
        match self.is_write {
            _ if len == 0 => MachineStep::Leave,
            true => MachineStep::Write(range),
            false => MachineStep::Read(range),
        }
    }
}

/// Lets one client transfer a range; returns the rate in bytes per second.
pub(super) fn stream(machine: &mut Machine, is_write: bool, len: u64, range: ByteRange) -> f64 {
    let begun_ns = machine.now_ns();
    machine.add_client(0, 0);
    machine.run(u64::MAX, &mut Stream { is_write, len, rest: range });
    range.len as f64 * 1e9 / (machine.now_ns() - begun_ns) as f64
}

pub(super) fn measure(plan: &CacheEffectPlan, len: u64) -> Result<Rates, OpenError> {
    let (min, max) = plan.bare_count;
    let bare = ByteRange::new(0, (plan.bare_bytes / len).clamp(min, max) * len);
    let write_bare = stream(&mut plan.machine(0)?, true, len, bare);
    let read_bare = stream(&mut plan.machine(0)?, false, len, bare);

    let pool_bytes = plan.pool_bytes;
    let mut machine = plan.machine(pool_bytes)?;
    // A quarter of the cache stays below the background limit. After the size of the cache has been
    // written, the cache has reached the dirty limit, unless the disk has kept up.
    let quarter = ByteRange::new(0, (pool_bytes / 4).next_multiple_of(len));
    let write_burst = stream(&mut machine, true, len, quarter);
    let filling = ByteRange::new(quarter.end(), pool_bytes);
    stream(&mut machine, true, len, filling);
    let last = ByteRange::new(filling.end(), (pool_bytes / 2).next_multiple_of(len));
    let write_sustained = stream(&mut machine, true, len, last);

    let mut machine = plan.machine(pool_bytes)?;
    let read_ahead = stream(&mut machine, false, len, quarter);
    let read_again = stream(&mut machine, false, len, quarter);
    Ok(Rates { len, write_bare, write_burst, write_sustained, read_bare, read_ahead, read_again })
}

fn megabytes(rate: f64) -> f64 {
    rate / 1e6
}

fn report(plan: &CacheEffectPlan, rates: &[Rates], stripe: Size) -> Report {
    let (pool, rate) = (Size(plan.pool_bytes), Link::FIBRE.bytes_per_second / 1_000_000);
    let model = vec![
        format!(
            "The disk is {}: stripes of {stripe} of data, on 7200 rpm hard disks without write \
             caches. One client reads or writes sequentially from the first byte on, one transfer \
             at a time. With and without the cache, the link between client and server takes {} us \
             per transfer, plus the time of its bytes at {rate} MB/s.",
            plan.disk,
            Link::FIBRE.request_ns / 1000
        ),
        format!(
            "\"Without\" is the array alone. All other columns are Forebay in write-back with \
             {pool} of lines, protected by a UPS. Burst: a quarter of {pool}, written into an \
             empty cache. Sustained: the rate after {pool} more, when the disk limits the writer; \
             * if the disk kept up, so that it never did. Read first: no data is in the cache, \
             which reads ahead. Read again: all data is in the cache."
        ),
        "The columns \"EMC\" are measurements of an EMC CLARiiON CX3-80 with 15 drives in RAID 5, \
         with the array's write cache off and on (\"The Cache Effect\", 2008)."
            .to_owned(),
    ];
    Report {
        title: "The effect of a write cache on RAID 5, by size of transfer".to_owned(),
        model,
        tables: vec![table(rates)],
        plots: plots(rates),
        remarks: remarks(rates),
    }
}

fn table(rates: &[Rates]) -> Table {
    let is_known = |rates: &Rates| rates.len == PUBLISHED_BYTES;
    Table::of(
        "MB/s",
        rates,
        &[
            ("transfer", &|rates| Size(rates.len).to_string()),
            ("write without", &|rates| figure(megabytes(rates.write_bare))),
            ("burst", &|rates| figure(megabytes(rates.write_burst))),
            ("sustained", &|rates| {
                figure(megabytes(rates.write_sustained)) + if rates.is_full() { "" } else { "*" }
            }),
            ("burst gain", &|rates| format!("{:.0}x", rates.write_burst / rates.write_bare)),
            ("EMC, off", &|rates| figure_or_empty(is_known(rates).then_some(PUBLISHED_BEFORE))),
            ("EMC, on", &|rates| figure_or_empty(is_known(rates).then_some(PUBLISHED_AFTER))),
            ("read without", &|rates| figure(megabytes(rates.read_bare))),
            ("read first", &|rates| figure(megabytes(rates.read_ahead))),
            ("read again", &|rates| figure(megabytes(rates.read_again))),
        ],
    )
}

fn plots(rates: &[Rates]) -> Vec<Plot> {
    let line = |name, of: fn(&Rates) -> f64| {
        Series::line(name, rates.iter().map(|rates| (rates.len as f64, megabytes(of(rates)))))
    };
    let mark = |name, value| Series::marks(name, [(PUBLISHED_BYTES as f64, value)]);
    let plot = |title: &str, series| {
        Plot::new(title, ("size of a transfer", Scale::Sizes), ("MB/s", Scale::Decades), series)
    };
    vec![
        plot(
            "Writes",
            vec![
                line("without", |rates| rates.write_bare),
                line("with, burst", |rates| rates.write_burst),
                line("with, sustained", |rates| rates.write_sustained),
                mark("EMC, off", PUBLISHED_BEFORE),
                mark("EMC, on", PUBLISHED_AFTER),
            ],
        ),
        plot(
            "Reads",
            vec![
                line("without", |rates| rates.read_bare),
                line("with, read first", |rates| rates.read_ahead),
                line("with, read again", |rates| rates.read_again),
            ],
        ),
    ]
}

fn remarks(rates: &[Rates]) -> Vec<String> {
    let Some(rates) = rates.iter().find(|rates| rates.len == PUBLISHED_BYTES) else {
        return Vec::new();
    };
    let [bare, burst, sustained] =
        [rates.write_bare, rates.write_burst, rates.write_sustained].map(megabytes);
    vec![format!(
        "Writes of {}: {} MB/s without the cache, {} MB/s in a burst ({:.0} times), {} MB/s \
         sustained ({:.1} times). EMC: {} and {} MB/s ({:.0} times).",
        Size(PUBLISHED_BYTES),
        figure(bare),
        figure(burst),
        burst / bare,
        figure(sustained),
        sustained / bare,
        figure(PUBLISHED_BEFORE),
        figure(PUBLISHED_AFTER),
        PUBLISHED_AFTER / PUBLISHED_BEFORE
    )]
}
