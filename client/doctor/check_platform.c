/* SPDX-License-Identifier: Apache-2.0 */
/* Platforms on which CUDA shares less. Loads nothing. */
#include "doctor.h"

#define CHECK "platform"

void check_platform(struct doctor *doctor) {
        switch (doctor->platform) {
        case PLATFORM_WSL:
                doctor_say(doctor, FINDING_NOTE, DOCTOR_WSL, CHECK, "This is Windows Subsystem for Linux.");
                break;
        case PLATFORM_TEGRA:
                doctor_say(doctor, FINDING_NOTE, DOCTOR_TEGRA, CHECK,
                           "This is a Tegra board: its GPU uses the host's memory.");
                break;
        case PLATFORM_PLAIN:
                break;
        }
}
