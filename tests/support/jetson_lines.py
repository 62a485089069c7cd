"""What programs of real Jetsons printed, collected from public sources, and what is in it."""

from __future__ import annotations

from dataclasses import dataclass

_CORES_14 = ",".join(["0%@972"] * 14)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A line of tegrastats.

    Args:
        board, software: that printed it, as its source says; source: where it was published.
        ram: MiB in use and in all; gpu_load: None where the line does not tell; watts: of the board.
    """

    board: str
    software: str
    source: str
    line: str
    ram: tuple[int, int]
    gpu_load: float | None
    watts: float


RECORDED = (
    Recorded(
        board="Orin Nano 8 GB",
        software="JetPack 6, as root",
        source="github.com/henrygd/beszel, agent/gpu_test.go",
        line="11-15-2024 08:38:09 RAM 6185/7620MB (lfb 8x2MB) SWAP 851/3810MB (cached 1MB) CPU [15%@729,11%@729,"
        "14%@729,13%@729,11%@729,8%@729] EMC_FREQ 43%@2133 GR3D_FREQ 63%@[621] NVDEC off NVJPG off NVJPG1 off VIC off "
        "OFA off APE 200 cpu@53.968C soc2@52.437C soc0@50.75C gpu@53.343C tj@53.968C soc1@51.656C VDD_IN "
        "12479mW/12479mW VDD_CPU_GPU_CV 4667mW/4667mW VDD_SOC 2817mW/2817mW",
        ram=(6185, 7620),
        gpu_load=0.63,
        watts=12.479,
    ),
    Recorded(
        board="Orin Nano 8 GB",
        software="JetPack 6, not as root: no EMC_FREQ, no clock behind the load",
        source="github.com/henrygd/beszel, agent/gpu_test.go",
        line="06-18-2025 11:25:24 RAM 3452/7620MB (lfb 25x4MB) SWAP 1518/16384MB (cached 174MB) CPU "
        "[1%@1420,2%@1420,0%@1420,2%@1420,2%@729,1%@729] GR3D_FREQ 0% cpu@50.031C soc2@49.031C soc0@50C "
        "gpu@49.031C tj@50.25C soc1@50.25C VDD_IN 4824mW/4824mW VDD_CPU_GPU_CV 518mW/518mW VDD_SOC 1475mW/1475mW",
        ram=(3452, 7620),
        gpu_load=0.0,
        watts=4.824,
    ),
    Recorded(
        board="AGX Orin 64 GB",
        software="JetPack 5 (sensors in capitals)",
        source="a public note on the DLA of AGX Orin (GitHub), 21 November 2025",
        line="11-21-2025 08:49:48 RAM 13983/62780MB (lfb 424x4MB) SWAP 126/31390MB (cached 0MB) CPU "
        "[90%@2201,100%@2201,100%@2201,100%@2201,100%@2201,100%@2201,100%@2201,100%@2201,100%@2201,100%@2201,"
        "100%@2201,100%@2201] EMC_FREQ 1%@2133 GR3D_FREQ 14%@[407,407] VIC_FREQ 115 NVDLA0_FREQ @1600 APE 174 "
        "CV0@73.625C CPU@77.281C Tboard@62C SOC2@70C Tdiode@62.25C SOC0@69.531C CV1@72.5C GPU@69.125C tj@77.281C "
        "SOC1@68.968C CV2@67.25C VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 14312mW/12415mW VIN_SYS_5V0 4968mW/5048mW "
        "VDDQ_VDD2_1V8AO 1091mW/1091mW",
        ram=(13983, 62780),
        gpu_load=0.14,
        watts=22.430,
    ),
    Recorded(
        board="AGX Orin 64 GB, developer kit",
        software="March 2024, release not said; a rail reads below zero",
        source="a public script that plots tegrastats (GitHub)",
        line="03-17-2024 18:54:10 RAM 10239/62841MB (lfb 442x4MB) SWAP 1/31421MB (cached 0MB) CPU "
        "[0%@1728,0%@1728,0%@1728,0%@1728,0%@1420,0%@1420,0%@1420,0%@1420,off,off,off,off] GR3D_FREQ 0% cpu@37.5C "
        "tboard@27C soc2@34.562C tdiode@27.5C soc0@34.531C tj@37.5C soc1@33.656C VDD_GPU_SOC 1592mW/1592mW "
        "VDD_CPU_CV -398mW/-398mW VIN_SYS_5V0 2624mW/2624mW VDDQ_VDD2_1V8AO 403mW/403mW",
        ram=(10239, 62841),
        gpu_load=0.0,
        watts=3.818,
    ),
    Recorded(
        board="AGX Orin 64 GB",
        software="Jetson Linux 36.4.4 (JetPack 6.2.1)",
        source="github.com/lesomnus/tegra-exporter, tests of stats",
        line="05-09-2026 18:42:07 RAM 18202/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) CPU "
        "[16%@1949,6%@1761,4%@1222,4%@2201,4%@1036,33%@1036,0%@1036,40%@1036,3%@1190,46%@1190,6%@1190,2%@1190] "
        "EMC_FREQ 3%@2133 GR3D_FREQ 0%@[0,0] NVENC 78%@166 NVDEC off NVJPG off NVJPG1 off VIC 32%@115 OFA off "
        "NVDLA0 off NVDLA1 off PVA0_FREQ off APE 174 cpu@52.343C soc2@48.343C soc0@49.062C tj@52.343C soc1@49.531C "
        "VDD_GPU_SOC 2412mW/2412mW VDD_CPU_CV 1607mW/1607mW VIN_SYS_5V0 4607mW/4657mW",
        ram=(18202, 62841),
        gpu_load=0.0,
        watts=8.626,
    ),
    Recorded(
        board="AGX Orin 64 GB",
        software="JetPack 7.2; the source leaves cores out",
        source="a public monitor of Jetsons (GitHub)",
        line="07-17-2026 15:15:24 RAM 8182/62817MB (lfb 6x4MB) CPU [18%@729,12%@729,...] GR3D_FREQ 5% "
        "cpu@51.343C/51.343C soc2@48.843C/48.843C soc0@49.25C/49.25C gpu@46.843C/46.843C tj@51.343C/51.343C "
        "soc1@47.843C/47.843C VDD_GPU_SOC 3588mW/3588mW/3588mW VDD_CPU_CV 797mW/797mW/797mW VIN_SYS_5V0 "
        "5148mW/5148mW/5148mW",
        ram=(8182, 62817),
        gpu_load=0.05,
        watts=9.533,
    ),
    Recorded(
        board="AGX Thor developer kit",
        software="Jetson Linux 38.4.0 (JetPack 7.1): three GPU clocks, no load",
        source="a public guide to tegrastats (GitHub)",
        line="04-21-2026 15:50:52 RAM 105265/125772MB (lfb 34x4MB) CPU [0%@972,0%@972,0%@972,0%@972,0%@972,0%@972,"
        "1%@972,0%@972,0%@972,0%@972,0%@972,8%@972,0%@972,0%@972] EMC_FREQ 0%@2750 GR3D_FREQ @[314,314,314] "
        "NVENC0_FREQ @314 NVENC1_FREQ @314 NVDEC0_FREQ @314 NVDEC1_FREQ @314 NVJPG0_FREQ @314 VIC off OFA_FREQ "
        "@315 PVA0_FREQ off APE 300 cpu@37.343C tj@38.875C soc012@37.468C gpu@38.875C soc345@37.406C VDD_GPU "
        "1962mW/1962mW VDD_CPU_SOC_MSS 5887mW/5887mW VIN_SYS_5V0 5635mW/5635mW VIN 19780mW/19780mW",
        ram=(105265, 125772),
        gpu_load=None,
        watts=19.780,
    ),
    Recorded(
        board="AGX Thor",
        software="Jetson Linux 39.2.0 (JetPack 7.2): three values a rail, no GR3D_FREQ",
        source="github.com/wendylabsinc/WendyOS, tests of hoststats",
        line="07-02-2026 13:45:44 RAM 36529/125749MB (lfb 12x4MB) SWAP 11/4096MB (cached 9MB) "
        f"CPU [{_CORES_14}] cpu@60.406C tj@63.281C soc012@58.468C gpu@62.906C soc345@63.281C "
        "VDD_GPU 37528mW/37528mW/37528mW VDD_CPU_SOC_MSS 18961mW/18961mW/18961mW "
        "VIN_SYS_5V0 18331mW/18331mW/18331mW VIN 87426mW/43713mW/87426mW",
        ram=(36529, 125749),
        gpu_load=None,
        watts=87.426,
    ),
    Recorded(
        board="Thor on a carrier without a VIN sensor",
        software="Jetson Linux 39.2.0 (JetPack 7.2)",
        source="github.com/lesomnus/tegra-exporter, tests of stats",
        line="07-23-2026 15:29:27 RAM 9091/125811MB (lfb 19x4MB) SWAP 0/2048MB (cached 0MB) CPU "
        "[40%@972,16%@972,18%@972,20%@972,13%@972,11%@972,15%@972,19%@972,10%@972,15%@972,28%@972,11%@972,11%@972,"
        "15%@972] EMC_FREQ 7%@3200 GR3D_FREQ @[314,314,314] NVENC0_FREQ @1556 NVENC1_FREQ @1556 NVDEC0_FREQ @1556 "
        "NVDEC1_FREQ @1556 NVJPG0_FREQ @1556 VIC 59%@423 OFA_FREQ @1556 PVA0_FREQ off APE 300 cpu@34.312C/34.843C "
        "tj@35.906C/35.906C soc012@34.093C/34.437C gpu@35.906C/35.906C soc345@34.437C/34.437C VDD_GPU "
        "4925mW/4925mW/4925mW VDD_CPU_SOC_MSS 7953mW/8332mW/8710mW VIN_SYS_5V0 6667mW/6717mW/6767mW",
        ram=(9091, 125811),
        gpu_load=None,
        watts=19.545,
    ),
)

TX2 = (
    "RAM 3276/7859MB (lfb 5x4MB) SWAP 1626/12122MB (cached 181MB) CPU [44%@1421,49%@2031,67%@2034,17%@1420,25%@1419,"
    "8%@1420] EMC_FREQ 1%@1866 GR3D_FREQ 0%@114 APE 150 MTS fg 1% bg 1% PLL@42.5C MCPU@42.5C PMIC@50C Tboard@38C "
    "GPU@39.5C BCPU@42.5C thermal@41.3C Tdiode@39.25C VDD_SYS_GPU 182/182 VDD_SYS_SOC 730/730 VDD_4V0_WIFI 0/0 "
    "VDD_IN 5297/5297 VDD_SYS_CPU 1917/1917 VDD_SYS_DDR 1241/1241"
)
"""JetPack 4, which is not read: no units (github.com/henrygd/beszel)."""

NV_TEGRA_RELEASE = (
    "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 "
    "01:49:37 UTC 2025\n# KERNEL_VARIANT: oot\nTARGET_USERSPACE_LIB_DIR=nvidia\n"
    "TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia\n"
)
"""An Orin Nano, JetPack 6.2 (public documentation of a camera maker)."""

MODEL = "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0"

NVPMODEL_CONF = (
    "< PM_CONFIG DEFAULT=2 >\n< POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n"
    "< POWER_MODEL ID=1 NAME=25W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n< POWER_MODEL ID=3 NAME=7W >\n"
)
"""The lines of an Orin Nano's that name modes."""

CLOCKS_SCALED = """SOC family:tegra234  Machine:NVIDIA Orin Jetson-Small Developer Kit
Online CPUs: 0-11
cpu0: Online=1 Governor=schedutil MinFreq=115200 MaxFreq=2201600 CurrentFreq=2112000 IdleStates: WFI=1 c7=1
cpu1: Online=1 Governor=schedutil MinFreq=115200 MaxFreq=2201600 CurrentFreq=2201600 IdleStates: WFI=1 c7=1
GPU MinFreq=306000000 MaxFreq=918000000 CurrentFreq=306000000
EMC MinFreq=204000000 MaxFreq=2133000000 CurrentFreq=2133000000 FreqOverride=0
"""
"""`jetson_clocks --show` (cores from github.com/rbonghi/jetson_stats, issue 381, ten of twelve left out; GPU and EMC
in the form of the Jetson Nano's there)."""
