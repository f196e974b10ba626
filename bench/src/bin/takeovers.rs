//! `takeovers`: two servers of one volume take it over from each other, through kills, freezes,
//! cuts of the network and wrong alarms, while clients write; every block is checked over the whole
//! history. The clients look for the owner, or an address moves with it.

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use forebay_bench::content::LoadRandom;
use forebay_bench::site::address::{self, MovingAddress};
use forebay_bench::site::client::{SiteClient, SiteClients};
use forebay_bench::site::node::{Node, NodeSetup};
use forebay_bench::site::register::{self, BLOCK_BYTES, BlockRegister};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of the volume.
const VOLUME: &str = "v";

/// Have two servers take one volume over from each other while clients write, and check that no
/// acknowledged write is lost. The disk and the journal must be empty.
#[derive(Parser)]
struct TakeoverArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// An empty folder for the files of the servers.
    #[arg(long)]
    folder: PathBuf,
    /// The volume's backing and settings on the first host, as `BACKING[,KEY=VALUE...]`.
    #[arg(long)]
    one: String,
    /// The same on the second host, by default as on the first.
    #[arg(long)]
    two: Option<String>,
    /// Words before each server's command, such as "unshare --pid --fork": another host has other
    /// processes. {host} stands for its number, 0 or 1.
    #[arg(long, default_value = "")]
    wrapper: String,
    /// Shell command that cuts a host off from the stores, with {host} for its number.
    #[arg(long, requires = "heal")]
    cut: Option<String>,
    /// Shell command that connects it again.
    #[arg(long, requires = "cut")]
    heal: Option<String>,
    /// The faults to choose from, by default all; those of the network only with --cut.
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Have the hosts take over by themselves when the owner has been silent for so many seconds,
    /// instead of by command. Faults that pass sooner are not chosen.
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..), conflicts_with = "address")]
    watch: Option<u64>,
    /// The volume at an address that moves with it, as a disk of further servers: all clients reach
    /// it through these, and get no error. Nothing but --cut need keep a former owner from the
    /// stores.
    #[arg(long, requires = "mover", requires = "cut")]
    address: Option<String>,
    /// Shell command that gives the address to a host ({verb} is `bring`), takes it (`drop`), cuts
    /// a host off from its clients (`cut`), or connects it again (`heal`).
    #[arg(long, requires = "address")]
    mover: Option<String>,
    /// Where the servers listen for the address.
    #[arg(long, requires = "address")]
    listen: Option<String>,
    /// The longest time by which the address moves after the takeover, in milliseconds.
    #[arg(long, default_value_t = 0, requires = "address")]
    late_ms: u64,
    /// Number of takeovers.
    #[arg(long, default_value_t = 20)]
    takeovers: u64,
    /// Clients, each with its own blocks.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    clients: u32,
    /// Blocks of 4 KiB.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(32..=65536))]
    blocks: u32,
    /// Shell command that writes the content of the disk to its standard output, for a comparison
    /// after the last server has stopped.
    #[arg(long)]
    fetch: Option<String>,
    /// The same seed chooses the same faults.
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

/// What happens to the owner before the other server takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// The server is killed; its keeper, if it has one, starts it again.
    Crash,
    /// The host loses power.
    PowerLoss,
    /// The host is suspended, and continues after the takeover.
    Sleep,
    /// The host is suspended, and continues while it is taken over.
    Nap,
    /// Nothing: the detection is wrong.
    None,
    /// The host is cut off from the stores, and connected again after the takeover.
    Cut,
    /// The host is cut off, and connected again while it is taken over.
    BriefCut,
    /// A planned move.
    Move,
}

impl Fault {
    /// Those of the network come last.
    const ALL: [Self; 8] = [
        Self::Crash,
        Self::PowerLoss,
        Self::Sleep,
        Self::Nap,
        Self::None,
        Self::Cut,
        Self::BriefCut,
        Self::Move,
    ];

    const fn is_of_network(self) -> bool {
        matches!(self, Self::Cut | Self::BriefCut)
    }

    /// Whether the owner falls silent for as long as it takes to notice that.
    const fn is_silence(self) -> bool {
        matches!(self, Self::PowerLoss | Self::Sleep | Self::Cut)
    }

    /// Whether it passes while the host is taken over.
    const fn is_brief(self) -> bool {
        matches!(self, Self::Nap | Self::BriefCut)
    }

    /// Has it happen to a host.
    fn strike(self, node: &mut Node) -> Result<()> {
        match self {
            Self::Crash => node.kill_server(),
            Self::PowerLoss => node.kill(),
            Self::Sleep | Self::Nap => node.freeze(),
            Self::Cut | Self::BriefCut => node.cut_off(),
            Self::Move => stand_by(node),
            Self::None => Ok(()),
        }
    }

    /// Has it happen to a host whose clients come to an address. There, a host is cut off from the
    /// clients, and one without power tells nobody.
    fn strike_at(self, node: &mut Node, host: usize, address: &MovingAddress) -> Result<()> {
        match self {
            // There is no keeper.
            Self::Crash => node.kill(),
            Self::PowerLoss => {
                address.apply("cut", host)?;
                node.kill()
            }
            Self::Cut => address.apply("cut", host),
            _ => self.strike(node),
        }
    }

    /// Ends it, if the host comes back by itself.
    fn pass(self, node: &Node) -> Result<()> {
        match self {
            Self::Sleep | Self::Nap => node.thaw(),
            Self::Cut | Self::BriefCut => node.reconnect(),
            Self::Crash | Self::PowerLoss | Self::None | Self::Move => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    match run(&TakeoverArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("takeovers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The two hosts.
fn setups(args: &TakeoverArgs) -> Vec<NodeSetup> {
    let setups = [&args.one, args.two.as_ref().unwrap_or(&args.one)].map(|volume| volume.clone());
    let settings = match args.watch {
        Some(seconds) => format!("standby=yes,takeover-after={seconds}s"),
        None if args.address.is_some() => "standby=yes".to_owned(),
        None => "nofail=yes".to_owned(),
    };
    setups
        .into_iter()
        .enumerate()
        .map(|(host, volume)| NodeSetup {
            programs: args.programs.clone(),
            dir: args.folder.join(format!("host-{host}")),
            volume: format!("{VOLUME}={volume},{settings}"),
            // What survives a server is tested on one of them.
            has_keeper: host == 0 && args.address.is_none(),
            nbd: args.listen.clone(),
            wrapper: on_host(&args.wrapper, host).split_whitespace().map(str::to_owned).collect(),
            network: args
                .cut
                .as_ref()
                .zip(args.heal.as_ref())
                .map(|commands| [commands.0, commands.1].map(|command| on_host(command, host))),
        })
        .collect()
}

fn run(args: &TakeoverArgs) -> Result<()> {
    let setups = setups(args);
    let mut nodes = Vec::new();
    for setup in &setups {
        nodes.push(Node::start(setup)?);
    }
    if args.watch.is_some() {
        take_over(&nodes[0])?;
    }
    let mut sockets: Vec<PathBuf> = nodes.iter().map(Node::socket).collect();
    let mut fronts = Vec::new();
    if let Some(address) = moving_address(args) {
        take_over(&nodes[0])?;
        address.apply("bring", 0)?;
        let disk = args.address.as_deref().unwrap_or_default();
        fronts = address::start_fronts(&args.programs, &args.folder, disk, VOLUME)?;
        sockets = fronts.iter().map(|front| front.socket.clone()).collect();
    }
    let site = clients_of(args, sockets);
    let blocks = std::thread::scope(|scope| -> Result<Vec<(u32, BlockRegister)>> {
        let clients: Vec<_> = (0..args.clients)
            .map(|client| {
                let blocks = (client..args.blocks).step_by(args.clients as usize);
                let client = SiteClient::new(&site, u64::from(args.seed * 100 + client), blocks);
                scope.spawn(|| {
                    let ended = client.run();
                    // The others need not go on after a failure.
                    if ended.is_err() {
                        site.is_over.store(true, Ordering::Release);
                    }
                    ended
                })
            })
            .collect();
        let times = take_over_repeatedly(args, &mut nodes, &site);
        // The clients' error would only say that no server answers.
        let _ = times.as_ref().inspect_err(|error| eprintln!("takeovers: {error:#}"));
        site.is_over.store(true, Ordering::Release);
        let mut blocks = Vec::new();
        for client in clients {
            blocks.extend(client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
        }
        show(&site, &mut times?);
        Ok(blocks)
    })?;
    if site.all_lead_to_owner {
        let failed = site.failed.load(Ordering::Relaxed);
        ensure!(failed == 0, "{failed} requests have failed: a takeover is to be a pause");
    }
    for front in fronts {
        front.stop()?;
    }
    let owner = (site.tenure.load(Ordering::Acquire) % 2) as usize;
    nodes[owner].stop()?;
    let Some(fetch) = &args.fetch else { return Ok(()) };
    let disk = Command::new("sh").args(["-c", fetch]).output()?;
    ensure!(disk.status.success(), "{fetch}: {}", String::from_utf8_lossy(&disk.stderr));
    for (block, register) in blocks {
        let at = block as usize * BLOCK_BYTES;
        let bytes = disk.stdout.get(at..at + BLOCK_BYTES).context("the disk is too small")?;
        let found = register::generations(bytes, args.seed, block)?;
        ensure!(
            register.certain() == Some(found),
            "the disk has generations {found:?} of block {block}, and clients had {register:?}"
        );
    }
    println!("the disk has what clients have read");
    Ok(())
}

/// A command on one of the hosts.
fn on_host(command: &str, host: usize) -> String {
    command.replace("{host}", &host.to_string())
}

/// What the clients share.
fn clients_of(args: &TakeoverArgs, sockets: Vec<PathBuf>) -> SiteClients {
    SiteClients {
        seed: args.seed,
        volume: VOLUME.to_owned(),
        tenure: AtomicU64::new(0),
        started: Instant::now(),
        is_over: AtomicBool::new(false),
        all_lead_to_owner: args.address.is_some(),
        answered: Mutex::new(vec![(0, Instant::now()); sockets.len()]),
        sockets,
        stale_reads: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    }
}

fn moving_address(args: &TakeoverArgs) -> Option<MovingAddress> {
    args.mover.clone().map(|command| MovingAddress { command })
}

/// The faults to choose from.
fn chosen_faults(args: &TakeoverArgs) -> Result<Vec<Fault>> {
    let faults = if args.faults.is_empty() { &Fault::ALL[..] } else { &args.faults };
    let has_network = args.cut.is_some();
    let faults = faults.iter().copied().filter(|it| has_network || !it.is_of_network());
    // A host that is cut off from its clients alone does not come back within a takeover.
    let faults = faults.filter(|it| args.address.is_none() || *it != Fault::BriefCut);
    let faults = faults.filter(|it| args.watch.is_none() || it.is_silence());
    let faults: Vec<_> = faults.collect();
    ensure!(!faults.is_empty(), "there is no such fault: those of the network need --cut");
    Ok(faults)
}

/// Has the servers take over from each other. Returns for each time how long after the fault
/// clients were served.
fn take_over_repeatedly(
    args: &TakeoverArgs,
    nodes: &mut [Node],
    site: &SiteClients,
) -> Result<Vec<(Fault, Duration)>> {
    let mut random = LoadRandom::new(u64::from(args.seed) << 32);
    let faults = chosen_faults(args)?;
    let address = moving_address(args);
    let mut times = Vec::new();
    wait_for_service(site, 0)?;
    for tenure in 1..=args.takeovers {
        std::thread::sleep(Duration::from_millis(200 + random.below(1500)));
        let fault = faults[random.below(faults.len() as u64) as usize];
        let hosts = [(tenure as usize - 1) % 2, tenure as usize % 2];
        let begun = Instant::now();
        println!("{} ms: {fault:?}", site.started.elapsed().as_millis());
        let nap = Duration::from_millis(random.below(400));
        match (&address, args.watch) {
            (Some(address), _) => {
                let late = Duration::from_millis(random.below(args.late_ms + 1));
                move_with_address(fault, nodes, hosts, address, &mut random, late)?;
            }
            (None, Some(_)) => {
                fault.strike(&mut nodes[hosts[0]])?;
                wait_until_served(&nodes[hosts[1]])?;
            }
            (None, None) => {
                fault.strike(&mut nodes[hosts[0]])?;
                take_over_during(fault, &nodes[hosts[0]], &nodes[hosts[1]], nap)?;
            }
        }
        site.tenure.store(tenure, Ordering::Release);
        println!("{} ms: taken over", site.started.elapsed().as_millis());
        let served = wait_for_service(site, tenure)?;
        times.push((fault, served.duration_since(begun)));
        println!("takeover {tenure}: {fault:?}, served after {:?}", served.duration_since(begun));
        match &address {
            Some(address) => recover_at(fault, &mut nodes[hosts[0]], hosts[0], address)?,
            None => recover(fault, &mut nodes[hosts[0]], hosts[0], &mut random)?,
        }
    }
    Ok(times)
}

/// Has the former owner come back, and waits until it knows that it is one.
fn recover(fault: Fault, former: &mut Node, host: usize, random: &mut LoadRandom) -> Result<()> {
    match fault {
        Fault::Sleep | Fault::Cut => {
            std::thread::sleep(Duration::from_millis(random.below(4000)));
            let is_told = fault == Fault::Cut && has_ended(former)?;
            ensure!(!is_told, "a host that is cut off has heard of the takeover");
            fault.pass(former)?;
        }
        Fault::PowerLoss => former.reboot()?,
        Fault::Crash if host == 1 => former.reboot()?,
        Fault::Crash | Fault::Nap | Fault::BriefCut | Fault::None | Fault::Move => {}
    }
    wait_for_end(former)
}

/// Moves volume and address, one or the other first. From the takeover on, the former owner does
/// not reach the stores.
fn move_with_address(
    fault: Fault,
    nodes: &mut [Node],
    [former, next]: [usize; 2],
    address: &MovingAddress,
    random: &mut LoadRandom,
    late: Duration,
) -> Result<()> {
    fault.strike_at(&mut nodes[former], former, address)?;
    let is_first = random.below(2) == 0;
    let is_in_reach = !matches!(fault, Fault::PowerLoss | Fault::Cut);
    let from = is_in_reach.then_some(former);
    if is_first {
        println!("  the address moves first");
        address.move_to(from, next)?;
        std::thread::sleep(late);
    }
    nodes[former].cut_off()?;
    let nap = Duration::from_millis(random.below(400));
    take_over_during(fault, &nodes[former], &nodes[next], nap)?;
    if !is_first {
        println!("  the address moves {late:?} later");
        std::thread::sleep(late);
        address.move_to(from, next)?;
    }
    Ok(())
}

/// As [`recover`], with an address.
fn recover_at(fault: Fault, former: &mut Node, host: usize, address: &MovingAddress) -> Result<()> {
    match fault {
        Fault::Sleep => former.thaw()?,
        Fault::PowerLoss => {
            address.apply("drop", host)?;
            address.apply("heal", host)?;
            former.reboot()?;
        }
        Fault::Crash => former.reboot()?,
        Fault::Cut => {
            // It hears late that it has lost the address.
            address.apply("heal", host)?;
            address.apply("drop", host)?;
        }
        Fault::Nap | Fault::BriefCut | Fault::None | Fault::Move => {}
    }
    wait_for_end(former)?;
    former.reconnect()
}

/// Has a server give the volume up.
fn stand_by(node: &Node) -> Result<()> {
    let output = node.command(&["standby", VOLUME])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "standby: {said}");
    Ok(())
}

/// Takes the volume over. A brief fault passes meanwhile, after some time.
fn take_over_during(fault: Fault, former: &Node, next: &Node, nap: Duration) -> Result<()> {
    std::thread::scope(|scope| {
        let passing = scope.spawn(move || {
            if fault.is_brief() {
                std::thread::sleep(nap);
                fault.pass(former)?;
            }
            anyhow::Ok(())
        });
        take_over(next)?;
        passing.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })
}

/// Takes the volume over, also if the former server is just about to end.
fn take_over(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let output = node.command(&["takeover", VOLUME])?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("  a takeover was refused: {}", said.trim());
        ensure!(Instant::now() < deadline, "the volume cannot be taken over: {said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until a server has taken the volume over by itself.
fn wait_until_served(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while has_ended(node)? {
        ensure!(Instant::now() < deadline, "the owner's silence is not noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until clients have been served in this tenure, through every socket that leads to its
/// owner. Returns when that was.
fn wait_for_service(site: &SiteClients, tenure: u64) -> Result<Instant> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answered = site.answered.lock().unwrap_or_else(|it| it.into_inner()).clone();
        let served = answered.iter().filter(|it| it.0 == tenure).map(|it| it.1);
        let needed = if site.all_lead_to_owner { answered.len() } else { 1 };
        if let Some(last) = served.clone().max()
            && served.count() >= needed
        {
            return Ok(last);
        }
        ensure!(!site.is_over.load(Ordering::Acquire), "a client has failed");
        ensure!(Instant::now() < deadline, "no client is served in tenure {tenure}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a former owner knows that it is one.
fn wait_for_end(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_ended(node)? {
        ensure!(Instant::now() < deadline, "a former owner does not end the volume");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Whether a server has ended the volume.
fn has_ended(node: &Node) -> Result<bool> {
    let status = node.command(&["status", "--json"])?;
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
    Ok(status["missing"].as_array().is_some_and(|missing| !missing.is_empty()))
}

fn show(site: &SiteClients, times: &mut [(Fault, Duration)]) {
    println!(
        "{} writes acknowledged, none lost; {} reads from the memory of former owners were old",
        site.acknowledged.load(Ordering::Relaxed),
        site.stale_reads.load(Ordering::Relaxed)
    );
    times.sort_by_key(|(_, time)| *time);
    for fault in Fault::ALL {
        let of: Vec<Duration> =
            times.iter().filter(|(of, _)| *of == fault).map(|(_, time)| *time).collect();
        if let (Some(median), Some(worst)) = (of.get(of.len() / 2), of.last()) {
            println!("{fault:?}: {} times, median {median:?}, worst {worst:?}", of.len());
        }
    }
    if let (Some((_, median)), Some((_, worst))) = (times.get(times.len() / 2), times.last()) {
        println!("all: {} takeovers, median {median:?}, worst {worst:?}", times.len());
    }
}
